"""Adapters: loaded beside the old one, by name."""

from tests.fakes.sglang import FakeSGLang
from tests.fakes.world import World


def test_an_adapter_is_loaded_beside_the_old_one_and_only_two_are_kept(
    world: World, fake: FakeSGLang
) -> None:
    fake.label = "0"
    for version in (1, 2, 3):
        world.make(version, "adapter")
        world.live(version)
        (route,) = world.tick()
        assert (route["state"], route["version_low"], route["adapter"]) == (
            "ready",
            version,
            f"default-v{version}",
        )
    assert "/pause_generation" not in fake.asked()
    assert sorted(fake.adapters) == ["default-v2", "default-v3"]
    assert fake.label == "0"


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
