"""Killed anywhere in a publish, reconciler or engine: it comes to the live version by itself, and nobody is
served anything else than a version that the table knows."""

from typing import Any

import pytest

from gateway.reconcile.sglang import Control
from tests.fakes.sglang import FakeSGLang, fake_sglang
from tests.fakes.world import World

#: The calls of one publish, looks included, are fewer.
MOST_CALLS = 14


class Killed(BaseException):
    """kill -9: no handler runs."""


def test_a_reconciler_killed_before_or_after_any_call_leaves_nothing_that_its_successor_cannot_mend(
    world: World, fake: FakeSGLang, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, when = Control._send, {"before": 0, "after": 0}

    def killing(self: Control, method: str, path: str, *rest: Any) -> Any:
        for moment in ("before", "after"):
            when[moment] -= 1
        if when["before"] == 0:
            raise Killed
        answer = send(self, method, path, *rest)
        if when["after"] == 0:
            raise Killed
        return answer

    monkeypatch.setattr(Control, "_send", killing)
    world.tick()
    kills, version = 0, 0
    for moment in ("before", "after"):
        for call in range(1, MOST_CALLS):
            version += 1
            world.make(version)
            world.live(version)
            when[moment] = call
            kills += killed(world)
            when[moment] = 0
            world.restart()
            for _ in range(3):
                (route,) = world.tick()
                assert served(route) in (None, version - 1, version)
            assert (route["state"], route["version_low"], route["version_high"]) == (
                "ready",
                version,
                version,
            )
            assert (fake.label, fake.paused) == (str(version), False)
    assert kills >= 20


def test_an_engine_killed_at_any_call_comes_back_to_the_live_version_before_it_serves(
    world: World, fake: FakeSGLang
) -> None:
    world.tick()
    paths = (
        "/weights_checker",
        "/pause_generation",
        "/update_weights_from_disk",
        "/continue_generation",
        "/generate",
    )
    for version, path in enumerate(paths, start=1):
        world.make(version)
        world.live(version)
        fake.replies[path] = ["die"]
        (route,) = world.tick()
        assert route["state"] != "ready" or served(route) in (version - 1, version)
        fake.replies.clear()
        fake.restart()
        for _ in range(3):
            (route,) = world.tick(61)
        assert (route["state"], route["version_low"], fake.label) == ("ready", version, str(version))


def test_several_engines_swap_one_after_the_other_also_under_two_reconcilers(
    world: World, fake: FakeSGLang, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_sglang(base=fake.base, weights=fake.base) as second:
        other = World(world.db, world.folder / "other", [second], owner="there", joins=world)
        world.tick()
        other.tick()
        world.make(1)
        world.live(1)
        seen: list[str] = []
        pause = fake.on_pause_generation

        def while_the_first_swaps(body: dict[str, Any]) -> tuple[int, Any]:
            (route,) = other.tick()
            seen.append(f"{route['state']}: {route['reason']}")
            return pause(body)

        monkeypatch.setattr(fake, "on_pause_generation", while_the_first_swaps, raising=False)
        (route,) = world.tick()
        assert seen == ["ready: another engine swaps its weights"]
        assert second.label == "default"
        assert route["version_low"] == 1
        (route,) = other.tick()
        assert (route["state"], route["version_low"], second.label) == ("ready", 1, "1")
        other.close()


def test_of_two_publishes_at_once_the_last_pointer_holds_and_both_are_in_the_table(
    world: World, fake: FakeSGLang, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.tick()
    world.make(1)
    world.make(2)
    world.live(1)
    update = fake.on_update_weights_from_disk

    def meanwhile(body: dict[str, Any]) -> Any:
        if body["weight_version"] == "1":
            world.live(2)
        return update(body)

    monkeypatch.setattr(fake, "on_update_weights_from_disk", meanwhile, raising=False)
    (route,) = world.tick()
    assert (route["version_low"], fake.label) == (2, "2")
    assert [row.version for row in world.published()] == [0, 1, 2]


def killed(world: World) -> bool:
    try:
        world.tick()
    except Killed:
        return True
    return False


def served(route: dict[str, Any]) -> int | None:
    """The version that users get; None where the engine takes no request."""
    return route["version_low"] if route["state"] == "ready" else None
