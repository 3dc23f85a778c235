"""When a version is worse than the one before: how much, and how sure."""

import pytest

from dukou.settings.learning import WatchSettings
from dukou.store.watch import SampleMean, VersionFigures, is_readable, share
from learner.train.guards import certain_fall, worse

SETTINGS = WatchSettings(turns=50, drop=0.2, length=3.0, confidence=0.99)


def seen(
    score: float = 0.5, length: float = 100.0, count: int = 100, variance: float = 0.25
) -> VersionFigures:
    return VersionFigures(SampleMean(count, score, variance), SampleMean(count, length, length**2 / 4))


def test_a_fall_that_is_large_and_sure_is_told_with_its_numbers() -> None:
    told = worse(seen(0.0), seen(0.6), SETTINGS)
    assert told == "the mean score fell from 0.60 to 0.00 over 100 turns (99% sure by more than 0.2)"


def test_a_fall_that_may_be_chance_is_none() -> None:
    assert worse(seen(0.2), seen(0.5), SETTINGS) is None  # 0.3, but only 0.14 of it is sure
    assert worse(seen(0.2, count=1000), seen(0.5, count=1000), SETTINGS) is not None


def test_a_small_fall_is_none_however_sure() -> None:
    assert worse(seen(0.35, count=100_000), seen(0.5, count=100_000), SETTINGS) is None


def test_a_rise_is_none() -> None:
    assert worse(seen(1.0), seen(-1.0), SETTINGS) is None


@pytest.mark.parametrize(("now", "before"), [(49, 100), (100, 49), (0, 0)])
def test_too_few_turns_on_either_side_say_nothing(now: int, before: int) -> None:
    assert worse(seen(-1.0, count=now), seen(1.0, count=before), SETTINGS) is None


def test_nothing_is_watched_where_turns_is_0() -> None:
    assert worse(seen(-1.0), seen(1.0), WatchSettings(turns=0)) is None


@pytest.mark.parametrize(("now", "before", "word"), [(900.0, 100.0, "longer"), (10.0, 100.0, "shorter")])
def test_answers_of_quite_another_length_are_worse(now: float, before: float, word: str) -> None:
    told = worse(seen(length=now), seen(length=before), SETTINGS)
    assert told is not None
    assert told.startswith(f"answers became {word}: {before:.0f} to {now:.0f} tokens")
    assert worse(seen(length=250), seen(length=100), SETTINGS) is None


def test_without_a_variance_nothing_is_sure() -> None:
    assert certain_fall(SampleMean(1, 0.0, None), SampleMean(9, 1.0, 0.1), 2.0) is None


def test_the_sure_part_is_the_fall_less_its_error() -> None:
    fall = certain_fall(SampleMean(100, 0.0, 1.0), SampleMean(100, 1.0, 1.0), 2.0)
    assert fall == pytest.approx(1.0 - 2.0 * (0.02**0.5))


def habits(refusals: float, unreadable: float, tools: int = 100) -> VersionFigures:
    both = SampleMean(100, 0.5, 0.25), SampleMean(100, 100.0, 100.0)
    rates = (SampleMean(n, rate, rate * (1 - rate)) for n, rate in ((100, refusals), (tools, unreadable)))
    return VersionFigures(*both, *rates)


def test_more_refusals_and_more_unreadable_tool_calls_are_worse_with_their_numbers() -> None:
    assert worse(habits(0.5, 0.0), habits(0.02, 0.0), SETTINGS) == (
        "answers that refuse rose from 2% to 50% of 100 turns (99% sure by more than 15%)"
    )
    assert worse(habits(0.0, 0.4), habits(0.0, 0.02), SETTINGS) == (
        "tool calls that cannot be read rose from 2% to 40% of 100 turns (99% sure by more than 15%)"
    )
    assert worse(habits(0.02, 0.02), habits(0.5, 0.4), SETTINGS) is None  # both became better
    assert worse(habits(0.2, 0.0), habits(0.02, 0.0), SETTINGS) is None  # 0.18, but not surely above 0.15


def test_few_tool_calls_say_nothing_of_tool_calls() -> None:
    assert worse(habits(0.0, 1.0, tools=49), habits(0.0, 0.0), SETTINGS) is None


@pytest.mark.parametrize(
    ("arguments", "readable"),
    [('{"city": "Lisbon"}', True), ("", True), ('{"city": ', False), ("[1]", False), ('"Lisbon"', False)],
)
def test_a_tool_call_is_readable_where_its_arguments_are_an_object(arguments: str, readable: bool) -> None:
    assert is_readable({"function": {"name": "weather", "arguments": arguments}}) is readable


def test_a_tool_call_without_a_name_is_not_readable() -> None:
    assert not is_readable({"function": {"name": "", "arguments": "{}"}})
    assert not is_readable("weather")


def test_a_share_is_a_mean_of_ones_and_zeros() -> None:
    assert share([True, False, False, True]) == SampleMean(4, 0.5, pytest.approx(1 / 3))
    assert share([]) == SampleMean(0, None, None)
    assert share([True]) == SampleMean(1, 1.0, None)
