"""Adapters on a real SGLang: loaded beside each other, traffic by name, unloaded when nobody uses them."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import orjson
import pytest
from sqlalchemy import Engine

from bench.publishing.plant import Plant
from bench.publishing.plants import adapter
from dukou.store import policies, publishing, versions
from dukou.store.versions import NewVersion
from gateway.reconcile.adapter_plan import UNLOAD_AFTER_SECONDS
from gateway.reconcile.decide import Route
from gateway.reconcile.postgres import ReconcilerStore
from gateway.reconcile.reconciler import Environment, Reconciler
from gateway.reconcile.sglang import Control
from tests.acceptance.conftest import RealEngine
from tests.fakes.world import Clock


@pytest.fixture
def control(lora_engine: RealEngine) -> Iterator[Control]:
    with Control(lora_engine.url) as made:
        yield made
        for name in made.adapters():
            made.unload_lora(name)


@pytest.fixture(scope="module")
def plants(lora_engine: RealEngine, tmp_path_factory: pytest.TempPathFactory) -> list[Plant]:
    place = tmp_path_factory.mktemp("plants")
    return [adapter(lora_engine.model, place / str(seed), seed) for seed in (1, 2)]


class Publisher:
    """One policy on one engine, and a reconciler whose clock is turned by hand."""

    def __init__(self, engine: RealEngine, db: Engine, control: Control, place: Path) -> None:
        self.db, self.place, self.clock = db, place, Clock()
        store = ReconcilerStore(lambda: db, "default", "test", self.clock)
        routes = place / "routes.json"
        self.reconciler = Reconciler(
            engine.config, store, [control], routes, environment=Environment(self.clock)
        )
        with db.begin() as connection:
            self.policy = policies.default(connection, engine.config).id

    def make(self, plant: Plant) -> int:
        with self.db.begin() as connection:
            number = versions.next_version(connection, self.policy)
            path = self.place / str(number)
            plant.copy_to(path)
            new = NewVersion(self.policy, number, 0, None, str(path), "adapter", plant.probe)
            versions.insert(connection, new)
        return number

    def live(self, version: int) -> None:
        with self.db.begin() as connection:
            publishing.publish(connection, self.policy, version)

    def tick(self, seconds: float = 0.0) -> Route:
        self.clock.now += seconds
        (route,) = self.reconciler.tick().values()
        return route

    def status(self, version: int) -> str:
        with self.db.begin() as connection:
            return versions.get(connection, self.policy, version).status


@pytest.fixture
def publisher(lora_engine: RealEngine, db: Engine, control: Control, tmp_path: Path) -> Publisher:
    return Publisher(lora_engine, db, control, tmp_path)


def stream(url: str, name: str, finish: list[str], began: threading.Event) -> None:
    """One user's long answer by an adapter."""
    body = {
        "model": "policy",
        "lora_path": name,
        "messages": [{"role": "user", "content": "tell me everything"}],
        "stream": True,
        "max_tokens": 1500,
        "ignore_eos": True,
    }
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=120) as reply:
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                began.set()
                choices = orjson.loads(line[6:])["choices"]
                finish += [choice["finish_reason"] for choice in choices if choice["finish_reason"]]


def until(holds: Callable[[], bool]) -> None:
    for _ in range(1200):
        if holds():
            return
        time.sleep(0.05)
    pytest.fail("it did not happen")


def test_traffic_moves_by_name_while_the_old_adapter_answers_to_its_end(
    publisher: Publisher, control: Control, lora_engine: RealEngine, plants: list[Plant]
) -> None:
    first, second, third = (publisher.make(plants[index]) for index in (0, 1, 0))
    publisher.live(first)
    assert publisher.tick().adapter == f"default-v{first}"
    finish: list[str] = []
    began = threading.Event()
    user = threading.Thread(target=stream, args=(lora_engine.url, f"default-v{first}", finish, began))
    user.start()
    assert began.wait(60)
    publisher.live(second)
    route = publisher.tick()
    assert (route.state, route.version_low, route.adapter) == ("ready", second, f"default-v{second}")
    assert user.is_alive()  # it began under the old adapter and goes on under it
    # The old one is to go: that waits for its user, the reconciler does not.
    publisher.tick(UNLOAD_AFTER_SECONDS)
    publisher.live(third)
    if user.is_alive():
        route = publisher.tick()
        assert route.adapter == f"default-v{second}"
        assert route.reason == "an old adapter has requests left"
    user.join(120)
    assert finish == ["length"]
    until(lambda: f"default-v{first}" not in control.adapters())
    until(lambda: publisher.tick().adapter == f"default-v{third}")


def test_an_adapter_serves_what_the_trainer_computed_and_another_one_is_refused(
    publisher: Publisher, control: Control, plants: list[Plant]
) -> None:
    """W6 on the real engine."""
    good = publisher.make(plants[0])
    publisher.live(good)
    assert publisher.tick().version_low == good
    swapped = publisher.make(Plant(plants[1].path, plants[0].probe))
    publisher.live(swapped)
    assert publisher.tick().version_low == 0  # its parent, the newest good version before it
    assert publisher.status(swapped) == "refused"
    assert f"default-v{swapped}" not in control.adapters()


def test_a_trial_is_served_beside_the_base_model_and_both_compute_their_own(
    publisher: Publisher, control: Control, plants: list[Plant]
) -> None:
    assert publisher.tick().version_low == 0
    tried = publisher.make(plants[1])
    with publisher.db.begin() as connection:
        publishing.try_out(connection, publisher.policy, tried, 0.5)
    route = publisher.tick()
    assert (route.version_low, route.adapter, route.beside) == (0, None, {f"default-v{tried}"})
    prompt = plants[1].probe.prompts[0]
    own = control.score(list(prompt.ids), adapter=f"default-v{tried}")
    base = control.score(list(prompt.ids))

    def apart(values: list[float | None]) -> float:
        pairs = zip(values, prompt.logprobs, strict=True)
        return sum(abs((value or 0.0) - wanted) for value, wanted in pairs) / len(values)

    assert apart(own) < 0.2
    assert apart(base) > 2 * apart(own)


def test_the_engine_says_how_many_adapters_run_at_once(control: Control) -> None:
    assert control.server_info().max_loras_per_batch == 8
