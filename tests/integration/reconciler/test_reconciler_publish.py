"""Full weights: how they come to an engine, and what happens where they should not."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from dukou.store import processes
from gateway.reconcile.decide import MAX_TRIES
from gateway.reconcile.postgres import ReconcilerStore
from tests.fakes.models import BASE, write_model
from tests.fakes.sglang import FakeSGLang, fake_sglang
from tests.fakes.world import World

SWAP = ["/pause_generation", "/update_weights_from_disk", "/continue_generation"]
SUMS = "/weights_checker"
AGREE = {"tensors": {"same": 3, "other": 0}}


def test_a_fresh_engine_is_at_version_0_and_ready(world: World, fake: FakeSGLang) -> None:
    (route,) = world.tick()
    assert (route["state"], route["version_low"], route["version_high"]) == ("ready", 0, 0)
    assert fake.asked() == []
    assert world.published()[0].probe == {"missing": "the base model"}


def test_full_weights_are_swapped_in_the_order_that_keeps_users_running(
    world: World, fake: FakeSGLang
) -> None:
    """W2, W4, W15: nothing is flushed, aborted or sent in pieces; the version goes with the one update."""
    world.tick()
    made = world.make(1)
    world.live(1)
    (route,) = world.tick()
    assert (route["state"], route["version_low"], route["version_high"]) == ("ready", 1, 1)
    assert fake.asked() == [SUMS, *SWAP, SUMS, "/generate"]  # the first only once in an engine's life
    pause, update = [call.body for call in fake.calls if call.path in SWAP[:2]]
    assert pause == {"mode": "in_place"}
    assert update == {
        "model_path": str(made),
        "weight_version": "1",
        "flush_cache": False,
        "abort_all_requests": False,
    }
    assert (fake.label, fake.weights, fake.paused) == ("1", str(made), False)
    last = world.published()[-1]
    assert (last.status, last.reported_version) == ("loaded", "1")
    assert last.probe == {**AGREE, "mean_abs_diff": 0.0, "max_abs_diff": 0.0}
    with world.db.begin() as connection:
        assert [(row.state, row.version) for row in processes.get_all(connection)] == [("ready", 1)]


def test_what_the_reconciler_has_scored_is_not_greedy(world: World, fake: FakeSGLang) -> None:
    """SGLang keeps the sampler that a temperature of 0 needs for all that run beside it: each of the users'
    tokens took 31 ms instead of 12 until the engine was idle."""
    world.tick()
    world.make(1)
    world.live(1)
    world.tick()
    scored = [call.body["sampling_params"] for call in fake.calls if call.path == "/generate"]
    assert scored
    assert all(sampling["temperature"] > 0 for sampling in scored)


def test_workers_read_both_versions_before_the_first_control_call(
    world: World, fake: FakeSGLang, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.tick()
    world.make(1)
    world.live(1)
    read: list[dict[str, Any]] = []
    pause = fake.on_pause_generation

    def reading(body: dict[str, Any]) -> tuple[int, Any]:
        read.extend(orjson.loads(world.routes_file.read_bytes())["engines"])
        return pause(body)

    monkeypatch.setattr(fake, "on_pause_generation", reading, raising=False)
    world.tick()
    assert [(route["state"], route["version_low"], route["version_high"]) for route in read] == [
        ("updating", 0, 1)
    ]


def reading_at(path: str, world: World, fake: FakeSGLang, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the workers read when a control call comes in."""
    read: list[Any] = []
    handler = f"on_{path.strip('/').replace('/', '_')}"
    answer = getattr(fake, handler)

    def reading(body: dict[str, Any]) -> Any:
        routes = orjson.loads(world.routes_file.read_bytes())["engines"]
        read.append([(route["state"], route["version_low"]) for route in routes])
        return answer(body)

    monkeypatch.setattr(fake, handler, reading, raising=False)
    return read


def test_users_of_the_only_engine_wait_for_the_load_and_not_for_its_verification(
    world: World, fake: FakeSGLang, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.tick()
    world.make(1)
    world.live(1)
    loading = reading_at("/update_weights_from_disk", world, fake, monkeypatch)
    probing = reading_at("/generate", world, fake, monkeypatch)
    world.tick()
    assert loading == [[("updating", 0)]]
    assert probing == [[("ready", 1)]]


def test_where_another_engine_serves_the_new_weights_are_verified_first(
    db: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_sglang() as one, fake_sglang() as two:
        world = World(db, tmp_path, [one, two])
        world.tick()
        world.make(1)
        world.live(1)
        probing = reading_at("/generate", world, one, monkeypatch)
        world.tick()
        assert probing == [[("updating", 0), ("ready", 0)]]
        world.close()


def test_an_engine_that_is_as_it_should_be_is_left_alone(world: World, fake: FakeSGLang) -> None:
    world.make(1)
    world.live(1)
    world.tick()
    before = len(fake.asked())
    for _ in range(5):
        world.tick()
    assert len(fake.asked()) == before


def test_an_update_that_fails_still_continues_and_keeps_the_old_version(
    world: World, fake: FakeSGLang
) -> None:
    world.tick()
    world.make(1)
    world.live(1)
    fake.replies["/update_weights_from_disk"] = [(400, {"success": False, "message": "disk trouble"})]
    (route,) = world.tick()
    assert fake.asked() == [SUMS, *SWAP]
    assert not fake.paused
    assert (route["state"], route["version_low"], route["version_high"]) == ("ready", 0, 0)
    assert "disk trouble" in world.published()[-1].error
    (route,) = world.tick()  # the back-off of a second has passed
    assert route["version_low"] == 1


def test_a_failing_publish_does_not_loop_hot(world: World, fake: FakeSGLang) -> None:
    world.tick()
    world.make(1)
    world.live(1)
    fake.replies["/update_weights_from_disk"] = [(400, {"message": "no"})] * 9
    for _ in range(35):
        world.tick(0.125)
    assert fake.asked().count("/update_weights_from_disk") == 3  # at 0, 1 and 3 seconds


def test_a_400_that_changed_the_weights_takes_the_engine_out_until_it_is_mended(
    world: World, fake: FakeSGLang
) -> None:
    world.tick()
    world.make(1)
    world.live(1)
    message = "Weights were updated, but the cache was not flushed"
    fake.replies["/update_weights_from_disk"] = [(400, {"message": message})]
    (route,) = world.tick()
    assert (route["state"], route["version_low"], route["version_high"]) == ("starting", 0, 1)
    (route,) = world.tick()
    assert (route["state"], route["version_low"]) == ("ready", 1)


def test_an_engine_that_says_another_version_than_it_was_told_is_not_believed(
    world: World, fake: FakeSGLang
) -> None:
    world.tick()
    world.make(1)
    world.live(1)
    fake.replies["/update_weights_from_disk"] = [(200, {"success": True})]  # the label stays
    (route,) = world.tick()
    assert route["state"] == "starting"
    assert "told 1 and says default" in world.published()[-1].error


def test_a_version_whose_probe_differs_is_refused_and_its_ancestor_comes_back_at_once(
    world: World, fake: FakeSGLang, caplog: pytest.LogCaptureFixture
) -> None:
    first = world.make(1)
    world.live(1)
    world.tick()
    fake.skews[str(world.make(2))] = 3.0
    world.live(2)
    (route,) = world.tick()
    assert (route["state"], route["version_low"], route["version_high"]) == ("ready", 1, 1)
    assert fake.weights == str(first)
    assert world.status(2) == ("refused", "its probe differs by 3.000 nats on average, 0.5 are allowed")
    assert world.live_version() == 1
    assert "version 2 is refused" in caplog.text
    assert world.published()[-2].probe == {**AGREE, "mean_abs_diff": 3.0, "max_abs_diff": 3.0}


def test_a_bad_checkpoint_never_reaches_the_engine(world: World, fake: FakeSGLang) -> None:
    world.tick()
    broken = {name: BASE[name] for name in list(BASE)[:-1]}
    world.make(1, folder=write_model(world.folder / "broken", broken))
    world.live(1)
    (route,) = world.tick()
    assert fake.asked() == []
    assert (route["state"], route["version_low"]) == ("ready", 0)
    assert world.status(1) == ("refused", "it lacks the tensor model.norm.weight")
    assert world.live_version() == 0


def test_a_rollback_goes_back_to_the_base_model(world: World, fake: FakeSGLang) -> None:
    world.make(1)
    world.live(1)
    world.tick()
    world.live(0)
    (route,) = world.tick()
    assert (route["version_low"], fake.label, fake.weights) == (0, "0", str(world.folder / "base"))
    assert world.status(1) == ("retired", "rolled back: version 0 became live")


def test_a_version_that_kills_its_engine_is_refused_in_the_end(world: World, fake: FakeSGLang) -> None:
    world.tick()
    fake.fatal.add(str(world.make(1)))
    world.live(1)
    for _ in range(MAX_TRIES):
        (route,) = world.tick(61)
        assert route["state"] == "dead"
        fake.restart()
    assert world.status(1)[0] == "refused"
    (route,) = world.tick(61)
    assert (route["state"], route["version_low"]) == ("ready", 0)


def test_engines_are_routed_to_only_at_the_version_that_each_acknowledged(db: Engine, tmp_path: Path) -> None:
    """W11."""
    with fake_sglang() as one, fake_sglang() as two:
        world = World(db, tmp_path, [one, two])
        world.tick()
        world.make(1)
        world.live(1)
        two.replies["/update_weights_from_disk"] = [(400, {"message": "no"})]
        first, second = world.tick()
        assert (first["state"], first["version_low"]) == ("ready", 1)
        assert (second["state"], second["version_low"]) == ("ready", 0)
        two.restart()
        two.replies["/update_weights_from_disk"] = [(400, {"message": "no"})]
        first, second = world.tick()
        assert second["version_low"] == 0
        world.close()


def test_a_version_without_a_probe_says_so(world: World) -> None:
    world.make(1, probe=None)
    world.live(1)
    world.tick()
    assert world.published()[-1].probe == {**AGREE, "missing": "its row has no probe"}


def test_a_pointer_that_moved_is_seen_between_two_looks(world: World) -> None:
    store = ReconcilerStore(lambda: world.db, "default", "another")
    store.live()
    assert not store.moved()
    world.make(1)
    world.live(1)
    assert store.moved()
    store.live()
    assert not store.moved()
    world.make(2, "adapter")
    world.try_out(2, 0.1)
    assert store.moved()
    store.live()
    assert not store.moved()


def test_without_postgres_no_pointer_moved(world: World) -> None:
    def refused() -> Engine:
        raise OperationalError("connect", {}, Exception("connection refused"))

    assert not ReconcilerStore(refused, "default", "another").moved()
