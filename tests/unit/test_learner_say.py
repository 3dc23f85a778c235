import pytest

from learner.log import LogThrottle, SamplesWait, age

WAITING = SamplesWait(needed=16, current=3, oldest=12.4, kind="samples", because="3 of 16 samples are there")


def test_the_waiting_line_has_the_promised_form():
    expected = "waiting for samples batch_size=16 current=3 oldest=12s because 3 of 16 samples are there"
    assert WAITING.line() == expected


def test_no_sample_has_no_age_rather_than_zero():
    line = SamplesWait(16, 0, None, "traffic", "no turn").line()
    assert "current=0 oldest=none because" in line


def test_resumed_is_said_once():
    throttle = LogThrottle(30)
    assert [throttle.resumed(), throttle.resumed()] == ["submission resumed", None]


def test_the_same_wait_is_repeated_only_after_the_interval():
    throttle = LogThrottle(30)
    said = [bool(throttle.waiting_for_samples(WAITING, now)) for now in (0.0, 1.0, 29.9, 30.0, 31.0, 60.0)]
    assert said == [True, False, False, True, False, True]


def test_another_count_or_another_reason_is_said_at_once():
    throttle = LogThrottle(30)
    throttle.waiting_for_samples(WAITING, 0.0)
    assert throttle.waiting_for_samples(SamplesWait(16, 4, 1.0, "samples", "4 of 16"), 1.0)
    assert throttle.waiting_for_samples(SamplesWait(16, 4, 2.0, "no_gateway", "no drainer"), 2.0)


def test_words_that_change_with_the_same_reason_are_not_a_new_wait():
    throttle = LogThrottle(30)
    throttle.waiting_for_samples(WAITING, 0.0)
    assert (
        throttle.waiting_for_samples(SamplesWait(16, 3, 13.0, "samples", "3 of 16, 1 turn being scored"), 1.0)
        is None
    )


def test_after_work_the_same_wait_is_new():
    throttle = LogThrottle(30)
    throttle.waiting_for_samples(WAITING, 0.0)
    throttle.reset()
    assert throttle.waiting_for_samples(WAITING, 1.0)


def test_other_waits_are_said_in_the_same_rhythm():
    throttle = LogThrottle(30)
    said = [throttle.waiting_for("Postgres", "connection refused", now) for now in (0.0, 5.0, 30.0)]
    line = "waiting for Postgres because connection refused"
    assert said == [line, None, line]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.9, "0s"),
        (119, "119s"),
        (185, "3m05s"),
        (1800, "30m"),
        (7800, "2h10m"),
        (7200, "2h"),
        (4 * 86400, "4d"),
        (None, "–"),
    ],
)
def test_ages_are_short(seconds, text):
    assert age(seconds) == text
