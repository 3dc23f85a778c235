from datetime import UTC, datetime, timedelta

from learner.llm.limits import Pace

NOON = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)


class Hands:
    now = NOON

    def __call__(self):
        return self.now

    def forward(self, seconds):
        self.now += timedelta(seconds=seconds)


def test_a_minute_holds_so_many_requests_and_slides():
    clock = Hands()
    pace = Pace("judge", 3, 0, clock)
    for _ in range(3):
        assert pace.enter(1) is not None
        clock.forward(10)
    assert pace.enter(1) is None
    assert pace.full() == "judge.requests_per_minute (3) is reached; next call at 12:01:00 UTC"
    clock.forward(30)
    assert pace.enter(1) is not None
    assert pace.enter(1) is None


def test_tokens_count_as_estimated_until_they_are_known():
    clock = Hands()
    pace = Pace("judge", 0, 100, clock)
    first = pace.enter(60)
    assert pace.enter(60) is not None
    assert pace.enter(1) is None
    pace.adjust(first, 10)
    assert pace.full() is None
    assert pace.enter(40) is not None
    assert "judge.tokens_per_minute (100)" in pace.full()


def test_without_limits_nothing_is_kept_and_nothing_held_back():
    pace = Pace("judge", 0, 0, Hands())
    assert all(pace.enter(10**9) is not None for _ in range(1000))
    assert pace.full() is None
