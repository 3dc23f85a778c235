"""The publishing bench's figures: what counts as failed, what a stall is, when a label is wrong."""

import pytest

from bench.publishing.figures import Outcomes, outcomes, percentile, ratio, wrongly_labelled
from bench.publishing.users import Answer


def answer(*chunks: float, **more: object) -> Answer:
    return Answer(10.0, "s", chunks=list(chunks), **{"finish": "length", "done": True, **more})  # type: ignore[arg-type]


def test_a_stall_is_the_longest_silence_the_first_one_included() -> None:
    assert answer(10.5, 10.6, 10.8).stall == 0.5
    assert answer(10.1, 11.0, 11.1).stall == pytest.approx(0.9)


def test_every_answer_is_counted_once_by_how_it_ended() -> None:
    ended = [
        answer(11),
        answer(11, finish="abort"),
        answer(11, done=False),
        answer(11, finish=None),
        answer(error="503"),
    ]
    assert outcomes(ended) == Outcomes(answers=5, failed=1, aborted=1, truncated=2)


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile(range(1, 101), 0.99) == 99
    assert percentile([7.0], 0.5) == 7.0
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_a_ratio_without_a_divisor_is_missing_not_zero() -> None:
    assert ratio(3, 2) == 1.5
    assert ratio(None, 2) is None
    assert ratio(3, 0) is None


def test_a_label_is_wrong_where_the_other_version_explains_the_turn_better() -> None:
    recorded, near, far = [-1.0, None, -2.0], [-1.1, -9.0, -2.0], [-3.0, -9.0, -2.0]
    assert not wrongly_labelled(recorded, near, far)
    assert wrongly_labelled(recorded, far, near)
