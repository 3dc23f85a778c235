import pytest

from dukou.store.calls import Caps, Costs, is_fault, of_channel, reached
from dukou.store.feedback import FeedbackCounts
from learner.status.report import Judging, text


@pytest.mark.parametrize(
    ("caps", "today", "ever", "words"),
    [
        (Caps(), Costs(9, 9, 9.0, 9), Costs(9, 9, 9.0, 9), None),
        (Caps(usd_per_day=1), Costs(cost_usd=0.99), Costs(cost_usd=5), None),
        (
            Caps(usd_per_day=1),
            Costs(cost_usd=1.0),
            Costs(cost_usd=1),
            "judge.usd_per_day (1) is reached",
        ),
        (
            Caps(usd_total=5),
            Costs(),
            Costs(cost_usd=5.5),
            "judge.usd_total (5) is reached with 5.5",
        ),
        (Caps(tokens_per_day=10), Costs(tokens=10), Costs(tokens=10), "goes on at 00:00 UTC"),
        (Caps(tokens_total=10), Costs(), Costs(tokens=12), "raise it to go on"),
        (
            Caps(usd_per_day=1),
            Costs(unpriced=2),
            Costs(unpriced=2),
            "price of 2 calls is unknown",
        ),
        (Caps(tokens_per_day=10), Costs(unpriced=2), Costs(unpriced=2), None),
    ],
)
def test_a_cap_says_which_one_it_is(caps, today, ever, words):
    said = reached(caps, today, ever)
    assert said is None if words is None else words in said


def test_a_channels_fault_is_told_from_one_of_the_question():
    assert all(map(of_channel, ("timeout", "unreachable", "bad_reply", "http_401", "http_429", "http_503")))
    assert not any(
        map(of_channel, ("ok", "unparsable", "empty", "truncated", "context_overflow", "http_400"))
    )
    assert all(map(is_fault, ("context_overflow", "http_400", "timeout")))
    assert not any(map(is_fault, ("ok", "unparsable", "empty")))


@pytest.mark.parametrize(
    ("spent", "words"),
    [
        (Costs(calls=2, tokens=50, cost_usd=0.25), "today 50 tokens, $0.2500; ever"),
        (
            Costs(calls=3, tokens=50, cost_usd=0.25, unpriced=1),
            "$0.2500 (and 1 calls of unknown price)",
        ),
        (Costs(calls=2, tokens=50, unpriced=2), "today 50 tokens at an unknown price (2 calls); ever"),
        (Costs(calls=1, tokens=0), "today 0 tokens, $0.0000"),
    ],
)
def test_a_price_that_nobody_knows_is_not_shown_as_nothing(spent, words):
    assert words in text(Judging((), spent, spent, Caps(), FeedbackCounts()))
