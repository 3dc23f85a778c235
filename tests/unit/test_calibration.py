import uuid

import pytest

from dukou.store.sessions import GivenScore
from learner.score.calibration import agreement, as_json, calibrate, length_bias, sign, text


def score(turn, side, value, tokens=None):
    return GivenScore(uuid.UUID(int=turn), side, value, tokens)


def test_agreement_and_kappa_by_hand():
    # The textbook example: 20 yes/yes, 5 yes/no, 10 no/yes, 15 no/no: observed .7, expected .5, kappa .4.
    pairs = [(1, 1)] * 20 + [(1, -1)] * 5 + [(-1, 1)] * 10 + [(-1, -1)] * 15
    found = agreement("feedback", "judge", pairs)
    assert (found.turns, found.agreement) == (50, 0.7)
    assert found.kappa == pytest.approx(0.4)
    assert as_json([found])[0]["confusion"] == [[15, 0, 10], [0, 0, 0], [5, 0, 20]]


def test_chance_agreement_has_no_kappa():
    assert agreement("a", "b", [(1, 1)] * 9).kappa is None


def test_opposite_sides_have_a_negative_kappa():
    assert agreement("a", "b", [(1, -1), (-1, 1)] * 5).kappa == -1


def test_sides_are_compared_on_the_turns_that_they_share_feedback_first():
    scores = [
        score(1, "llm r@1", 1.0), score(1, "feedback", 1.0), score(2, "llm r@1", -1.0),
        score(2, "rules", 0.0), score(3, "rules", 1.0),
    ]  # fmt: skip
    found = calibrate(scores)
    assert [(one.first, one.second, one.turns) for one in found] == [
        ("feedback", "llm r@1", 1),
        ("llm r@1", "rules", 1),
    ]
    assert "feedback against llm r@1: 1 turns, 100% agree" in text(found)


def test_nothing_to_compare_says_what_to_do():
    assert "send feedback" in text(calibrate([score(1, "rules", 1.0)]))


def test_a_judge_that_likes_length_is_seen():
    """J14."""
    said = [score(1, "llm", value, tokens) for value, tokens in ((-1, 10), (0, 20), (1, 30))]
    flat = [score(1, "rules", value, 10) for value in (-1, 1)] + [score(1, "rules", 1)]
    of_llm, of_rules = length_bias(said + flat)
    assert (of_llm.side, of_llm.turns, of_llm.correlation) == ("llm", 3, pytest.approx(1.0))
    assert (of_rules.turns, of_rules.correlation) == (2, None)
    assert "llm: +1.00 over 3 turns" in text([], [of_llm])


@pytest.mark.parametrize(("value", "expected"), [(1, 1), (0.34, 1), (0.3, 0), (0, 0), (-0.3, 0), (-0.5, -1)])
def test_a_fraction_has_the_sign_of_its_third(value, expected):
    assert sign(value) == expected
