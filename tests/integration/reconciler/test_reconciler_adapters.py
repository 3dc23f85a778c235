"""Adapters: loaded beside the old one, by name."""

from gateway.reconcile.adapter_plan import UNLOAD_AFTER_SECONDS
from tests.fakes.sglang import FakeSGLang
from tests.fakes.world import World


def test_an_adapter_is_loaded_beside_the_old_one_which_goes_when_nobody_uses_it(
    world: World, fake: FakeSGLang
) -> None:
    """W6."""
    for version in (1, 2):
        world.make(version, "adapter")
        world.live(version)
        (route,) = world.tick()
        assert (route["state"], route["version_low"], route["adapter"]) == (
            "ready",
            version,
            f"default-v{version}",
        )
    assert sorted(fake.adapters) == ["default-v1", "default-v2"]
    world.tick(UNLOAD_AFTER_SECONDS)
    assert list(fake.adapters) == ["default-v2"]
    assert "/pause_generation" not in fake.asked()
    assert fake.label == "default"


def test_there_are_never_more_adapters_than_run_at_once_with_a_place_for_the_base_model(
    world: World, fake: FakeSGLang
) -> None:
    """W6."""
    fake.places = 3
    for version in range(1, 6):
        world.make(version, "adapter")
        world.live(version)
        for _ in range(3):
            (route,) = world.tick(1)
            assert len(fake.adapters) <= 2
        assert route["adapter"] == f"default-v{version}"


def test_while_an_old_adapter_has_requests_left_the_new_one_waits_and_users_do_not(
    world: World, fake: FakeSGLang
) -> None:
    """W6."""
    fake.places = 3
    for version in (1, 2):
        world.make(version, "adapter")
        world.live(version)
        world.tick(1)
    running = [True]
    world.spawn = lambda work: lambda: running[0]  # its last request takes its time
    world.restart()
    world.tick(1)
    world.make(3, "adapter")
    world.live(3)
    for reason in ("the adapter default-v1 has to go first", "an old adapter has requests left"):
        (route,) = world.tick(1)
        assert (route["state"], route["adapter"], route["reason"]) == ("ready", "default-v2", reason)
    fake.adapters.pop("default-v1")
    running[0] = False
    (route,) = world.tick(1)
    assert route["adapter"] == "default-v3"


def test_a_version_on_trial_is_loaded_beside_and_named_to_the_workers(world: World, fake: FakeSGLang) -> None:
    world.make(1, "adapter")
    world.live(1)
    world.tick()
    world.make(2, "adapter")
    world.try_out(2, 0.25)
    (route,) = world.tick()
    assert (route["adapter"], route["beside"]) == ("default-v1", {"2": "default-v2"})
    assert world.routes()["trial"] == {"version": 2, "share": 0.25}
    world.live(2)
    (route,) = world.tick()
    assert (route["adapter"], route["beside"]) == ("default-v2", {})


def test_a_trial_that_computes_something_else_is_refused_and_ends(world: World, fake: FakeSGLang) -> None:
    world.make(1, "adapter")
    world.live(1)
    world.tick()
    fake.skews[str(world.make(2, "adapter"))] = 3.0
    world.try_out(2, 0.5)
    world.tick()
    (route,) = world.tick()
    assert (route["beside"], world.routes()["trial"]) == ({}, None)
    assert world.status(2)[0] == "refused"
    assert list(fake.adapters) == ["default-v1"]


def test_the_base_model_can_be_live_beside_a_trial(world: World, fake: FakeSGLang) -> None:
    world.tick()
    world.make(1, "adapter")
    world.try_out(1, 0.5)
    (route,) = world.tick()
    assert (route["version_low"], route["adapter"], route["beside"]) == (0, None, {"1": "default-v1"})


def test_sessions_stay_on_the_adapter_they_began_with_for_a_bounded_time(
    world: World, fake: FakeSGLang
) -> None:
    world.pin_seconds = 600
    world.restart()
    for version in (1, 2):
        world.make(version, "adapter")
        world.live(version)
        world.session(f"s{version}", began_with=version)
        world.tick()
    world.session("old", began_with=1, age=601)
    world.session("found", began_with=1, source="lineage")
    (route,) = world.tick(UNLOAD_AFTER_SECONDS)
    assert world.routes()["pins"] == {"default/s1": 1}
    assert route["beside"] == {"1": "default-v1"}
    assert sorted(fake.adapters) == ["default-v1", "default-v2"]
    world.age("s1", 601)
    world.tick()
    (route,) = world.tick(UNLOAD_AFTER_SECONDS)
    assert (world.routes()["pins"], route["beside"]) == ({}, {})
    assert list(fake.adapters) == ["default-v2"]


def test_nobody_stays_on_a_version_that_was_rolled_back(world: World) -> None:
    world.pin_seconds = 600
    world.restart()
    for version in (1, 2):
        world.make(version, "adapter")
        world.live(version)
        world.tick()
    world.session("s", began_with=2)
    world.live(1)
    world.tick()
    assert world.routes()["pins"] == {}


def test_an_adapter_whose_probe_differs_is_unloaded_and_the_old_one_never_stopped(
    world: World, fake: FakeSGLang
) -> None:
    world.make(1, "adapter")
    world.live(1)
    world.tick()
    fake.skews[str(world.make(2, "adapter"))] = 3.0
    world.live(2)
    (route,) = world.tick()
    assert (route["state"], route["adapter"]) == ("ready", "default-v1")
    assert sorted(fake.adapters) == ["default-v1"]
    assert world.status(2)[0] == "refused"


def test_a_restarted_engine_gets_its_adapter_again(world: World, fake: FakeSGLang) -> None:
    world.make(1, "adapter")
    world.live(1)
    world.tick()
    fake.restart()
    (route,) = world.tick()
    assert (route["state"], route["adapter"]) == ("ready", "default-v1")
    assert list(fake.adapters) == ["default-v1"]


def test_another_gateways_workers_send_the_same_sessions_beside(world: World, fake: FakeSGLang) -> None:
    world.make(1, "adapter")
    world.live(1)
    world.tick()
    world.make(2, "adapter")
    world.try_out(2, 0.25)
    world.tick()
    other = World(world.db, world.folder / "other", [fake], owner="there", joins=world)
    before = len(fake.asked())
    (route,) = other.tick()
    assert (route["adapter"], route["beside"]) == ("default-v1", {"2": "default-v2"})
    assert other.routes()["trial"] == {"version": 2, "share": 0.25}
    assert len(fake.asked()) == before
    other.close()
