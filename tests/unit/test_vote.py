import pytest

from dukou.store.scores import Score, Vote
from learner.score.verdict import decide


def cast(*values, hints=()):
    """None is a vote that failed, "?" an abstention."""
    status = {None: "http_500", "?": "abstained"}
    return [
        Vote(n, status.get(v, "ok"), None if v in status else v, dict(enumerate(hints)).get(n))
        for n, v in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("values", "quorum", "value", "reason"),
    [
        ((1, 1, -1), 2, 1, "majority"),
        ((-1, -1, -1), 2, -1, "majority"),
        ((0, 0, 1), 2, 0, "majority"),
        ((1, -1), 2, 0, "tie"),
        ((1, -1, 0), 2, 0, "tie"),
        ((1, 1, -1, -1, 0), 3, 0, "tie"),
        ((1, 1, 0, -1), 2, 1, "majority"),
        ((1, None, 1), 2, 1, "majority"),
        ((1, None, None), 2, None, "no_quorum"),
        ((None, None, None), 1, None, "no_quorum"),
        ((), 1, None, "no_quorum"),
        ((1, "?", "?"), 2, None, "abstained"),
        (("?",), 1, None, "abstained"),
        (("?", None, None), 2, None, "no_quorum"),
    ],
)
def test_votes_come_to(values, quorum, value, reason):
    """J1, J13."""
    assert decide(cast(*values), quorum) == Score(value, reason)


@pytest.mark.parametrize(
    ("values", "value", "reason"),
    [
        ((1, 1, 1), 1, "majority"),
        ((-1, -1, -1), -1, "majority"),
        ((1, 1, -1), None, "abstained"),
        ((1, 1, 0), None, "abstained"),
        ((1, 1, "?"), None, "abstained"),
        ((1, -1, None), None, "abstained"),
        ((1, 1, None), None, "no_quorum"),
        ((None, None, None), None, "no_quorum"),
    ],
)
def test_of_a_suspected_turn_every_vote_must_come_and_agree(values, value, reason):
    """J5."""
    assert decide(cast(*values), len(values), unanimous=True) == Score(value, reason)


def test_the_longest_hint_wins_and_short_ones_say_nothing():
    assert decide(cast(-1, -1, hints=("say less", "Use three bullets.")), 1).hint == "Use three bullets."
    assert decide(cast(-1, hints=("ten chars.",)), 1).hint is None
