"""Where a request goes that got no answer: anywhere while nobody has it, once more after one lost it."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.routing import ROUND_TRIP_SECONDS, Attempts, may_retry, was_undelivered

FLEET = [f"http://{name}" for name in "abcdefgh"]
Fate = Callable[[Attempts, str], Attempts]
FATES: tuple[Fate, ...] = (Attempts.not_sent, Attempts.sent_and_lost)


def test_a_request_that_was_not_sent_may_go_to_every_engine() -> None:
    attempts = Attempts()
    for engine in FLEET[:-1]:
        attempts = attempts.not_sent(engine)
        assert may_retry(attempts, FLEET, begun=False, gone=False)
    assert not may_retry(attempts.not_sent(FLEET[-1]), FLEET, begun=False, gone=False)


def test_a_request_that_was_lost_goes_to_one_other_engine_and_no_further() -> None:
    once = Attempts().sent_and_lost("http://a")
    assert may_retry(once, FLEET, begun=False, gone=False)
    assert not may_retry(once, ["http://a"], begun=False, gone=False)
    assert may_retry(once.not_sent("http://b"), FLEET, begun=False, gone=False)
    assert not may_retry(once.sent_and_lost("http://b"), FLEET, begun=False, gone=False)


@pytest.mark.parametrize(("begun", "gone"), [(True, False), (False, True), (True, True)])
def test_an_answer_that_has_begun_and_a_client_that_has_left_end_it(begun: bool, gone: bool) -> None:
    assert not may_retry(Attempts().not_sent("http://a"), FLEET, begun=begun, gone=gone)
    assert not may_retry(Attempts().sent_and_lost("http://a"), FLEET, begun=begun, gone=gone)


@given(st.lists(st.sampled_from(FATES), min_size=len(FLEET), max_size=len(FLEET)), st.randoms())
def test_whatever_happens_at_most_two_engines_get_a_request_and_none_gets_it_twice(
    fates: list[Fate], random: Random
) -> None:
    attempts, asked = Attempts(), []
    for fate in fates:
        left = [engine for engine in FLEET if engine not in attempts.engines]
        engine = random.choice(left)
        asked.append(engine)
        attempts = fate(attempts, engine)
        if not may_retry(attempts, FLEET, begun=False, gone=False):
            break
    assert len(asked) == len(set(asked))
    assert len(attempts.lost) <= 2


@pytest.mark.parametrize(
    ("seconds", "connect_seconds", "undelivered"),
    [
        (0.001, 0.0002, True),
        (ROUND_TRIP_SECONDS, 0.0, True),
        (ROUND_TRIP_SECONDS + 0.001, 0.0, False),
        (30.0, 0.001, False),
        (0.35, 0.2, True),  # a far engine
        (0.45, 0.2, False),
    ],
)
def test_only_what_closes_within_a_round_trip_crossed_the_request(
    seconds: float, connect_seconds: float, undelivered: bool
) -> None:
    assert was_undelivered(seconds, connect_seconds) is undelivered
