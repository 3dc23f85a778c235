import pytest

from store.calls import is_fault, of_channel
from store.spending import Caps, Spent, reached


@pytest.mark.parametrize(
    ("caps", "today", "ever", "words"),
    [
        (Caps(), Spent(9, 9, 9.0, 9), Spent(9, 9, 9.0, 9), None),
        (Caps(usd_per_day=1), Spent(cost_usd=0.99), Spent(cost_usd=5), None),
        (Caps(usd_per_day=1), Spent(cost_usd=1.0), Spent(cost_usd=1), "judge.usd_per_day (1) is reached"),
        (Caps(usd_total=5), Spent(), Spent(cost_usd=5.5), "judge.usd_total (5) is reached with 5.5"),
        (Caps(tokens_per_day=10), Spent(tokens=10), Spent(tokens=10), "goes on at 00:00 UTC"),
        (Caps(tokens_total=10), Spent(), Spent(tokens=12), "raise it to go on"),
        (Caps(usd_per_day=1), Spent(unpriced=2), Spent(unpriced=2), "price of 2 calls is unknown"),
        (Caps(tokens_per_day=10), Spent(unpriced=2), Spent(unpriced=2), None),
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
