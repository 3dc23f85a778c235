"""What only a real engine shows of many updates: its memory, and tensors that it derives from others."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from sqlalchemy import Engine

from bench.faulting.procfs import children_of
from bench.publishing.plant import Plant
from bench.publishing.plants import full
from dukou.local.engine.__main__ import say
from dukou.local.engine.start import start, stop
from dukou.settings.model import Config
from dukou.settings.paths import StatePaths
from dukou.store import policies, publishing, versions
from dukou.store.versions import NewVersion
from gateway.reconcile.postgres import ReconcilerStore
from gateway.reconcile.reconciler import Reconciler
from gateway.reconcile.sglang import Control
from learner.train import probe
from learner.train.model import load, vocabulary
from tests.acceptance.conftest import RealEngine, configured
from tests.acceptance.test_real_engine import Stream

RELOADS = 20
USERS = 4


@pytest.fixture
def control(real_engine: RealEngine) -> Iterator[Control]:
    with Control(real_engine.url) as made:
        yield made
        made.update_weights_from_disk(str(real_engine.model), "0", flush_cache=True)


def resident(pid: int) -> int:
    """Bytes of a process and all of its descendants."""
    family = [pid]
    for one in family:
        family += children_of(one)
    pages = sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in family)
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_twenty_reloads_under_load_leave_the_engines_memory_as_it_was(
    real_engine: RealEngine, control: Control, checkpoints: Path
) -> None:
    """W17, on a CPU: what the engine's processes hold, instead of a GPU's free memory."""
    plants = [full(real_engine.model, checkpoints / f"x{factor}", factor) for factor in (1.5, 0.6)]
    users = [Stream(real_engine.url) for _ in range(USERS)]
    for user in users:
        user.start()
    assert all(user.began.wait(60) for user in users)
    held = []
    for number in range(RELOADS):
        control.pause("in_place")
        control.update_weights_from_disk(str(plants[number % 2].path), str(1000 + number))
        control.continue_()
        held.append(resident(real_engine.pid))
    for user in users:
        user.join(180)
    assert [(user.error, user.finish) for user in users] == [(None, ["length"])] * USERS
    assert held[-1] < 1.01 * held[1]


def embedding_scaled(base: Path, place: Path, factor: float) -> Plant:
    """The base model with the embedding scaled, which is its head, too."""
    made = full(base, place, 1.0)
    tensors = load_file(place / "model.safetensors")
    tensors["model.embed_tokens.weight"] *= factor
    save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
    changed = load(place, torch.device("cpu"))
    return Plant(made.path, probe.measure(changed, probe.prompts(base, vocabulary(changed))))


def live_version(db: Engine, config: Config, plant: Plant, place: Path) -> int:
    with db.begin() as connection:
        policy = policies.default(connection, config).id
        number = versions.next_version(connection, policy)
        plant.copy_to(place / str(number))
        path = str(place / str(number))
        versions.insert(connection, NewVersion(policy, number, 0, None, path, "full", plant.probe))
        publishing.publish(connection, policy, number)
    return number


@pytest.mark.slow
def test_a_head_that_the_engine_keeps_in_float32_is_of_the_newest_version_each_time(
    installed: StatePaths, db: Engine, tmp_path: Path, checkpoints: Path
) -> None:
    """W9, W14: head and embedding are one tensor, of which the engine computes with a copy."""
    strict = {"probe_tolerance": 0.1}
    config = configured(installed, tmp_path, ["--enable-fp32-lm-head"], publish=strict)
    base = Path(config.engine.model_path)
    plants = [embedding_scaled(base, checkpoints / str(factor), factor) for factor in (3.0, 0.3)]
    process = start(config, say)
    try:
        with Control(config.engine.urls[0]) as control:
            store = ReconcilerStore(lambda: db, "default", "test")
            follower = Reconciler(config, store, [control], tmp_path / "routes.json")
            follower.tick()
            for plant in plants:
                number = live_version(db, config, plant, checkpoints)
                (route,) = follower.tick().values()
                assert (route.state, route.version_low) == ("ready", number)
            wrong = Plant(plants[0].path, plants[1].probe)  # what a stale head would compute
            live_version(db, config, wrong, checkpoints)
            (route,) = follower.tick().values()
            assert route.version_low == 0  # it was refused: the probe tells the two apart
    finally:
        stop(process)
