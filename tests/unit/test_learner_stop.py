import os
import signal
from threading import Event

import pytest

from learner.stop import Abandoned, Stop, SystemClock


@pytest.fixture
def stop():
    made = Stop()
    with made.listen():
        yield made


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_for_a_stop(stop, number):
    os.kill(os.getpid(), number)
    assert stop.requested


def test_a_signal_interrupts_what_may_be_abandoned(stop):
    done = []
    with pytest.raises(Abandoned), stop.abandonable():
        done += [os.kill(os.getpid(), signal.SIGTERM), "the step went on"]
    assert done == []


def test_after_the_step_a_signal_interrupts_nothing(stop):
    with stop.abandonable():
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.requested


def test_nothing_long_begins_after_a_stop(stop):
    stop.request()
    with pytest.raises(Abandoned), stop.abandonable():
        pytest.fail("the step began")


def test_no_handler_of_faults_takes_a_stop_for_one():
    assert not issubclass(Abandoned, Exception)


def test_a_second_signal_has_its_ordinary_effect(stop):
    os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_the_handlers_from_before_come_back():
    before = signal.getsignal(signal.SIGTERM)
    with Stop().listen():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_wait_ends_at_once_when_the_event_is_set():
    event = Event()
    event.set()
    assert SystemClock().wait(event, 3600)
