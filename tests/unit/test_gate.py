import threading
from datetime import UTC, datetime, timedelta

import pytest

from learner.llm.limits import OUTAGE_FAULTS, REFUSED_SECONDS, Gate, retry_after_seconds

NOON = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)


class Hands:
    """A clock that moves when told."""

    def __init__(self):
        self.now = NOON

    def __call__(self):
        return self.now

    def forward(self, seconds):
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock():
    return Hands()


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("3", 3.0),
        ("0.5", 0.5),
        ("Mon, 02 Nov 2026 12:00:20 GMT", 20.0),
        ("Mon, 02 Nov 2026 11:00:00 GMT", 0.0),
        ("-4", 0.0),
        ("999999", 3600.0),
        ("soon", None),
        ("nan", None),
        (None, None),
    ],
)
def test_retry_after_is_read_as_seconds_or_date(header, seconds):
    """J9."""
    assert retry_after_seconds(header, NOON) == seconds


def test_a_rate_limit_holds_until_the_named_moment_and_no_longer(clock):
    gate = Gate(clock)
    gate.rate_limited("3")
    clock.forward(2.9)
    assert "429" in gate.closed()
    clock.forward(0.2)
    assert gate.closed() is None


def test_a_later_limit_never_shortens_an_earlier_one(clock):
    gate = Gate(clock)
    gate.rate_limited("60")
    gate.rate_limited("1")
    clock.forward(30)
    assert gate.closed() is not None


def test_a_refusal_is_said_once_and_tried_again_after_a_while(clock, caplog):
    gate = Gate(clock)
    for _ in range(3):
        gate.refused("the key was refused")
    assert gate.closed().startswith("the key was refused; next try at 12:05:00")
    assert [record.getMessage() for record in caplog.records] == [
        "the key was refused; turns wait, nothing is lost"
    ]
    clock.forward(REFUSED_SECONDS)
    assert gate.closed() is None


def test_single_faults_of_a_tested_channel_close_nothing(clock):
    gate = Gate(clock)
    gate.answered()
    for _ in range(5):
        for _ in range(OUTAGE_FAULTS - 1):
            gate.failed("http_500")
        gate.answered()
    assert gate.closed() is None


def test_an_outage_closes_the_channel_for_longer_each_time(clock):
    """J1."""
    gate = Gate(clock)
    gate.answered()
    for _ in range(OUTAGE_FAULTS):
        gate.failed("unreachable")
    clock.forward(5)
    assert gate.closed() is None
    gate.failed("unreachable")  # untested again: one fault is enough
    clock.forward(5)
    assert gate.closed() is not None
    clock.forward(5)
    assert gate.closed() is None


def test_a_late_answer_does_not_reopen_a_closed_gate(clock):
    gate = Gate(clock)
    gate.rate_limited("10")
    gate.answered()
    assert gate.closed() is not None


def test_until_something_came_back_one_call_is_made_at_a_time(clock):
    gate = Gate(clock)
    refused = []

    def second():
        with gate.passage() as closed:
            refused.append(closed)

    with gate.passage() as closed:
        assert closed is None
        thread = threading.Thread(target=second)
        thread.start()
        gate.refused("the key was refused")
    thread.join()
    assert refused[0].startswith("the key was refused")
