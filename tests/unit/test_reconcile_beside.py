"""Adapters beside the live one: what is loaded, what goes, and how many there may be."""

from gateway.reconcile.adapter_plan import (
    UNLOAD_AFTER_SECONDS,
    UNLOAD_SOON_SECONDS,
    EngineAdapters,
    ExtraAdapters,
    has_room,
    plan,
    to_make_room,
)
from gateway.reconcile.decide import Target


def target(version: int) -> Target:
    return Target(version, "adapter", f"versions/{version}", f"default-v{version}")


LIVE = target(9)


def names(*versions: int) -> frozenset[str]:
    return frozenset(f"default-v{version}" for version in versions)


def engine(
    loaded: frozenset[str],
    places: int = 8,
    ready: frozenset[str] = frozenset(),
    unused: dict[str, float] | None = None,
) -> EngineAdapters:
    return EngineAdapters(loaded, "default", places, unused or {}, ready)


def test_the_trial_comes_first_and_then_the_newest_pins() -> None:
    extra = ExtraAdapters(target(10), 0.1, {}, {v: target(v) for v in (3, 5, 7)})
    made = plan(engine(names(9), 8, names(9)), LIVE, extra)
    assert [asked.version for asked in made.load] == [10, 7, 5, 3]
    assert made.serve == names(10, 7, 5, 3)


def test_who_finds_no_place_is_served_by_the_live_version() -> None:
    extra = ExtraAdapters(target(10), 0.1, {}, {v: target(v) for v in (3, 5, 7)})
    made = plan(engine(names(9), 4, names(9)), LIVE, extra)
    assert made.serve == names(
        10, 7
    )  # three places: the live one, the trial, one pin; the fourth is the base's


def test_what_is_loaded_and_was_not_verified_is_brought_again_without_a_place_of_its_own() -> None:
    extra = ExtraAdapters(pinned={7: target(7)})
    made = plan(engine(names(7, 9), 3, names(9)), LIVE, extra)
    assert [asked.version for asked in made.load] == [7]


def test_an_unused_adapter_goes_late_or_soon_where_its_place_is_needed() -> None:
    unused = {"default-v8": UNLOAD_SOON_SECONDS}
    calm = plan(engine(names(8, 9), 8, names(8, 9), unused), LIVE, ExtraAdapters())
    assert calm.unload == ()
    unused_long = {"default-v8": UNLOAD_AFTER_SECONDS}
    late = plan(engine(names(8, 9), 8, names(8, 9), unused_long), LIVE, ExtraAdapters())
    assert late.unload == ("default-v8",)
    tight = plan(engine(names(8, 9), 3, names(8, 9), unused), LIVE, ExtraAdapters(target(10), 0.1))
    assert (tight.load, tight.unload) == ((), ("default-v8",))


def test_other_peoples_adapters_take_places_and_stay() -> None:
    loaded = names(9) | {"theirs", "default-vision"}
    made = plan(engine(loaded, 4, names(9), {"theirs": 1e9}), LIVE, ExtraAdapters(target(10), 0.1))
    assert (made.load, made.unload) == ((), ())
    assert not has_room(engine(loaded, 4), target(10))


def test_room_for_a_new_live_adapter_is_made_by_the_oldest_but_never_by_what_serves() -> None:
    assert has_room(engine(names(1, 2), 4), target(3))
    assert not has_room(engine(names(1, 2), 3), target(3))
    assert has_room(engine(names(1, 2), 3), target(2))
    assert to_make_room(engine(names(2, 10)), "default-v10", ExtraAdapters()) == "default-v2"
    assert to_make_room(engine(names(10)), "default-v10", ExtraAdapters()) is None


def test_what_sessions_ask_for_goes_last() -> None:
    extra = ExtraAdapters(target(11), 0.1, {}, {2: target(2), 3: target(3)})
    assert to_make_room(engine(names(2, 3, 4, 10, 11)), "default-v10", extra) == "default-v4"
    assert to_make_room(engine(names(2, 3, 10, 11)), "default-v10", extra) == "default-v2"
    assert to_make_room(engine(names(10, 11)), "default-v10", extra) == "default-v11"
