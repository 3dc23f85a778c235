"""Where a request goes that got no answer: anywhere while nobody has it, once more after one lost it."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.retry import RACE_SECONDS, Tried, goes_on, is_race

FLEET = [f"http://{name}" for name in "abcdefgh"]
Fate = Callable[[Tried, str], Tried]
FATES: tuple[Fate, ...] = (Tried.not_sent, Tried.sent_and_lost)


def test_a_request_that_was_not_sent_may_go_to_every_engine() -> None:
    tried = Tried()
    for engine in FLEET[:-1]:
        tried = tried.not_sent(engine)
        assert goes_on(tried, FLEET, begun=False, gone=False)
    assert not goes_on(tried.not_sent(FLEET[-1]), FLEET, begun=False, gone=False)


def test_a_request_that_was_lost_goes_to_one_other_engine_and_no_further() -> None:
    once = Tried().sent_and_lost("http://a")
    assert goes_on(once, FLEET, begun=False, gone=False)
    assert not goes_on(once, ["http://a"], begun=False, gone=False)
    assert goes_on(once.not_sent("http://b"), FLEET, begun=False, gone=False)
    assert not goes_on(once.sent_and_lost("http://b"), FLEET, begun=False, gone=False)


@pytest.mark.parametrize(("begun", "gone"), [(True, False), (False, True), (True, True)])
def test_an_answer_that_has_begun_and_a_client_that_has_left_end_it(begun: bool, gone: bool) -> None:
    assert not goes_on(Tried().not_sent("http://a"), FLEET, begun=begun, gone=gone)
    assert not goes_on(Tried().sent_and_lost("http://a"), FLEET, begun=begun, gone=gone)


@given(st.lists(st.sampled_from(FATES), min_size=len(FLEET), max_size=len(FLEET)), st.randoms())
def test_whatever_happens_at_most_two_engines_get_a_request_and_none_gets_it_twice(
    fates: list[Fate], random: Random
) -> None:
    tried, asked = Tried(), []
    for fate in fates:
        left = [engine for engine in FLEET if engine not in tried.engines]
        engine = random.choice(left)
        asked.append(engine)
        tried = fate(tried, engine)
        if not goes_on(tried, FLEET, begun=False, gone=False):
            break
    assert len(asked) == len(set(asked))
    assert len(tried.lost) <= 2


@pytest.mark.parametrize(
    ("seconds", "connected_in", "race"),
    [
        (0.001, 0.0002, True),
        (RACE_SECONDS, 0.0, True),
        (RACE_SECONDS + 0.001, 0.0, False),
        (30.0, 0.001, False),
        (0.35, 0.2, True),  # a far engine
        (0.45, 0.2, False),
    ],
)
def test_only_what_closes_within_a_round_trip_crossed_the_request(
    seconds: float, connected_in: float, race: bool
) -> None:
    assert is_race(seconds, connected_in) is race
