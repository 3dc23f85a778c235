"""The reconciler against a real SGLang: weights change under a running stream, and are checked."""

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file
from sqlalchemy import Engine, select
from transformers import AutoModelForCausalLM

from dukou.store import policies, versions
from dukou.store.tables import publications
from dukou.store.versions import NewVersion, Probe, ProbePrompt
from gateway.reconcile.checkpoint import MARKER
from gateway.reconcile.decide import Route
from gateway.reconcile.postgres import ReconcilerStore
from gateway.reconcile.reconciler import Reconciler
from gateway.reconcile.sglang import Control, ControlError, Health
from tests.acceptance.conftest import RealEngine

IDS = [1, 504, 253, 1798, 338, 28, 216, 33, 5]
NORM = "model.norm.weight"


@pytest.fixture
def control(real_engine: RealEngine) -> Iterator[Control]:
    with Control(real_engine.url) as made:
        yield made


@pytest.fixture
def policy(db: Engine, real_engine: RealEngine) -> int:
    with db.begin() as connection:
        return policies.default(connection, real_engine.config).id


@pytest.fixture
def reconciler(real_engine: RealEngine, db: Engine, control: Control, tmp_path: Path) -> Reconciler:
    store = ReconcilerStore(lambda: db, "default", "test", lambda: 0.0)
    return Reconciler(real_engine.config, store, [control], tmp_path / "routes.json")


def perturbed(base: Path, folder: Path, factor: float) -> Path:
    """A copy of the model that clearly computes something else."""
    shutil.copytree(base, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors[NORM] = tensors[NORM] * factor
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / MARKER).touch()
    return folder


def probe(model: Path) -> Probe:
    """The trainer's view: its own forward pass over the exported weights."""
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        logits = loaded(torch.tensor([IDS])).logits[0, :-1]
    values = logits.log_softmax(-1).gather(-1, torch.tensor(IDS[1:])[:, None])[:, 0]
    return Probe((ProbePrompt(tuple(IDS), tuple(values.tolist())),))


def publish(db: Engine, policy: int, folder: Path, probed: Probe) -> int:
    with db.begin() as connection:
        number = versions.next_version(connection, policy)
        versions.insert(connection, NewVersion(policy, number, 0, None, str(folder), "full", probed))
        versions.set_live(connection, policy, number)
    return number


class Stream(threading.Thread):
    """One user's long streaming answer."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.began = threading.Event()
        self.finish: list[str] = []
        self.error: str | None = None
        self.chunks = 0
        self._url = url

    def run(self) -> None:
        body = {
            "model": "policy",
            "messages": [{"role": "user", "content": "tell me everything"}],
            "stream": True,
            "max_tokens": 2000,
            "ignore_eos": True,
        }
        try:
            with httpx.stream("POST", f"{self._url}/v1/chat/completions", json=body, timeout=120) as reply:
                for line in reply.iter_lines():
                    if line.startswith("data: {"):
                        self._take(json.loads(line[6:]))
        except httpx.HTTPError as error:
            self.error = repr(error)

    def _take(self, chunk: dict[str, list[dict[str, str]]]) -> None:
        self.chunks += 1
        self.finish += [choice["finish_reason"] for choice in chunk["choices"] if choice["finish_reason"]]
        if self.chunks == 5:
            self.began.set()


def only(routes: dict[str, Route]) -> tuple[str, int | None, int | None]:
    (route,) = routes.values()
    return route.state, route.version_low, route.version_high


def test_weights_change_under_a_stream_that_survives_and_the_engine_says_the_new_version(
    real_engine: RealEngine,
    control: Control,
    reconciler: Reconciler,
    policy: int,
    db: Engine,
    checkpoints: Path,
) -> None:
    """W2 on the real engine."""
    assert only(reconciler.tick()) == ("ready", 0, 0)
    base_sum, base_norm = control.checksum(), control.tensor(NORM, 4)
    made = perturbed(real_engine.model, checkpoints / "1", 1.5)
    number = publish(db, policy, made, probe(made))
    stream = Stream(real_engine.url)
    stream.start()
    assert stream.began.wait(60)
    assert only(reconciler.tick()) == ("ready", number, number)
    assert stream.is_alive()  # it began under the old weights and goes on under the new ones
    stream.join(120)
    assert (stream.error, stream.finish) == (None, ["length"])
    info = control.model_info()
    assert info is not None
    assert info.weight_version == str(number)
    assert control.tensor(NORM, 4) == pytest.approx([1.5 * value for value in base_norm], rel=0.01)
    with db.begin() as connection:
        row = connection.execute(select(publications).where(publications.c.version == number)).one()
    assert (row.status, row.reported_version) == ("loaded", str(number))
    assert row.probe["mean_abs_diff"] < 0.1
    assert row.probe["tensors"]["other"] == 0
    assert row.probe["tensors"]["same"] > 10
    with db.begin() as connection:
        versions.set_live(connection, policy, 0)
    assert only(reconciler.tick()) == ("ready", 0, 0)
    assert control.checksum() == base_sum


def test_weights_that_compute_something_else_than_the_trainer_are_taken_back(
    real_engine: RealEngine,
    control: Control,
    reconciler: Reconciler,
    policy: int,
    db: Engine,
    checkpoints: Path,
) -> None:
    """W8 on the real engine."""
    reconciler.tick()
    before = control.checksum()
    wrong = perturbed(real_engine.model, checkpoints / "wrong", 40.0)
    number = publish(db, policy, wrong, probe(real_engine.model))
    assert only(reconciler.tick()) == ("ready", 0, 0)
    with db.begin() as connection:
        row = versions.get(connection, policy, number)
    assert row.status == "refused"
    assert "nats" in str(row.reason)
    assert control.checksum() == before


def test_a_checkpoint_of_another_shape_is_refused_and_the_engine_lives(
    real_engine: RealEngine,
    control: Control,
    reconciler: Reconciler,
    policy: int,
    db: Engine,
    checkpoints: Path,
) -> None:
    reconciler.tick()
    made = perturbed(real_engine.model, checkpoints / "odd", 1.0)
    tensors = load_file(made / "model.safetensors")
    tensors[NORM] = torch.ones(32, dtype=torch.bfloat16)
    save_file(tensors, made / "model.safetensors", metadata={"format": "pt"})
    number = publish(db, policy, made, probe(real_engine.model))
    assert only(reconciler.tick()) == ("ready", 0, 0)
    with db.begin() as connection:
        assert NORM in str(versions.get(connection, policy, number).reason)
    assert control.health() is Health.READY


def test_a_paused_engine_is_told_from_a_starting_and_a_dead_one(control: Control) -> None:
    assert control.health() is Health.READY
    control.pause("in_place")
    try:
        assert control.health() is Health.PAUSED
    finally:
        control.continue_()
    assert control.health() is Health.READY
    with Control("http://127.0.0.1:9") as nobody:
        assert nobody.health() is Health.DEAD


def test_scores_begin_where_they_were_asked_to(control: Control) -> None:
    control.flush_cache()
    whole, tail = control.score(IDS), control.score(IDS, start=5)
    assert len(whole) == len(IDS) - 1
    assert None not in whole
    assert tail == pytest.approx(whole[4:], abs=0.2)


def test_a_path_that_does_not_exist_leaves_the_old_weights_and_label(control: Control) -> None:
    info, before = control.model_info(), control.checksum()
    with pytest.raises(ControlError):
        control.update_weights_from_disk("/nowhere", "99")
    assert control.model_info() == info
    assert control.checksum() == before
