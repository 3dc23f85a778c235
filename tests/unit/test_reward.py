from datetime import UTC, datetime, timedelta

import pytest

from dukou.store.feedback import Opinion
from learner.score.reward import correction, hints, reward

NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)


def said(*opinions):
    """Opinions in order of time; `rater` is "a" unless named."""
    return [
        Opinion(**({"rater": "a", "given_at": NOON + timedelta(seconds=n)} | one))
        for n, one in enumerate(opinions)
    ]


@pytest.mark.parametrize(
    ("opinions", "value"),
    [
        ([], None),
        ([{"comment": "hm"}], None),
        ([{"rating": 1}], 1.0),
        ([{"rating": 0}], 0.0),
        ([{"rating": 1, "score": 0.25}], 0.25),
        ([{"correction": "better"}], -1.0),
        ([{"correction": "better", "rating": 1}], 1.0),
        ([{"success": True}], 1.0),
        ([{"success": False}], -1.0),
        ([{"success": True}, {"rating": -1}], -1.0),
        ([{"rating": -1}, {"success": True}], -1.0),
        ([{"success": True, "correction": "x"}], 1.0),
        ([{"rating": -1}, {"rating": 1}], 1.0),
        ([{"rating": 1}, {"comment": "and thanks"}], 1.0),
        ([{"rating": 1}, {"rating": -1, "rater": "b"}, {"rating": -1, "rater": "c"}], -1 / 3),
    ],
)
def test_the_reward_of_what_was_said(opinions, value):
    assert reward(said(*opinions)) == (None if value is None else pytest.approx(value))


def test_the_newest_correction_counts_and_comments_come_newest_first():
    opinions = said({"correction": "one", "comment": "first"}, {"correction": "two"}, {"comment": "last"})
    assert correction(opinions) == "two"
    assert hints(opinions) == ("last", "first")
    assert (correction([]), hints([])) == (None, ())
