"""Adapters beside the live one: what is loaded, what goes, and how many there may be."""

from gateway.reconcile.beside import (
    UNLOAD_AFTER_SECONDS,
    UNLOAD_SOON_SECONDS,
    ExtraAdapters,
    has_room,
    plan,
    to_make_room,
)
from gateway.reconcile.decide import Target


def target(version: int) -> Target:
    return Target(version, "adapter", f"versions/{version}", f"default-v{version}")


LIVE = target(9)
NONE: dict[str, float] = {}


def names(*versions: int) -> frozenset[str]:
    return frozenset(f"default-v{version}" for version in versions)


def test_the_trial_comes_first_and_then_the_newest_pins() -> None:
    extra = ExtraAdapters(target(10), 0.1, {}, {v: target(v) for v in (3, 5, 7)})
    made = plan(names(9), "default", LIVE, extra, 8, NONE, names(9))
    assert [asked.version for asked in made.load] == [10, 7, 5, 3]
    assert made.serve == names(10, 7, 5, 3)


def test_who_finds_no_place_is_served_by_the_live_version() -> None:
    extra = ExtraAdapters(target(10), 0.1, {}, {v: target(v) for v in (3, 5, 7)})
    made = plan(names(9), "default", LIVE, extra, 4, NONE, names(9))
    assert made.serve == names(
        10, 7
    )  # three places: the live one, the trial, one pin; the fourth is the base's


def test_what_is_loaded_and_was_not_verified_is_brought_again_without_a_place_of_its_own() -> None:
    extra = ExtraAdapters(pinned={7: target(7)})
    made = plan(names(7, 9), "default", LIVE, extra, 3, NONE, names(9))
    assert [asked.version for asked in made.load] == [7]


def test_an_unused_adapter_goes_late_or_soon_where_its_place_is_needed() -> None:
    unused = {"default-v8": UNLOAD_SOON_SECONDS}
    calm = plan(names(8, 9), "default", LIVE, ExtraAdapters(), 8, unused, names(8, 9))
    assert calm.unload == ()
    late = plan(
        names(8, 9), "default", LIVE, ExtraAdapters(), 8, {"default-v8": UNLOAD_AFTER_SECONDS}, names(8, 9)
    )
    assert late.unload == ("default-v8",)
    tight = plan(names(8, 9), "default", LIVE, ExtraAdapters(target(10), 0.1), 3, unused, names(8, 9))
    assert (tight.load, tight.unload) == ((), ("default-v8",))


def test_other_peoples_adapters_take_places_and_stay() -> None:
    loaded = names(9) | {"theirs", "default-vision"}
    made = plan(loaded, "default", LIVE, ExtraAdapters(target(10), 0.1), 4, {"theirs": 1e9}, names(9))
    assert (made.load, made.unload) == ((), ())
    assert not has_room(loaded, target(10), 4)


def test_room_for_a_new_live_adapter_is_made_by_the_oldest_but_never_by_what_serves() -> None:
    assert has_room(names(1, 2), target(3), 4)
    assert not has_room(names(1, 2), target(3), 3)
    assert has_room(names(1, 2), target(2), 3)
    assert to_make_room(names(2, 10), "default", "default-v10", ExtraAdapters()) == "default-v2"
    assert to_make_room(names(10), "default", "default-v10", ExtraAdapters()) is None


def test_what_sessions_ask_for_goes_last() -> None:
    extra = ExtraAdapters(target(11), 0.1, {}, {2: target(2), 3: target(3)})
    assert to_make_room(names(2, 3, 4, 10, 11), "default", "default-v10", extra) == "default-v4"
    assert to_make_room(names(2, 3, 10, 11), "default", "default-v10", extra) == "default-v2"
    assert to_make_room(names(10, 11), "default", "default-v10", extra) == "default-v11"
