"""Stopping at once, and the clock that every delay of the learner runs on."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from types import FrameType
from typing import Protocol


class Clock(Protocol):
    """Seconds that only grow, and waiting; tests bring their own."""

    def now(self) -> float: ...

    def wait(self, event: Event, seconds: float) -> bool:
        """Waits until the event is set or the time is over; True where it is set."""
        ...


class SystemClock:
    def now(self) -> float:
        return time.monotonic()

    def wait(self, event: Event, seconds: float) -> bool:
        return event.wait(seconds)


class Abandoned(BaseException):
    """The work in hand was given up because the process stops.

    Not an Exception: nothing between the signal and the loop may take it for a fault and go on.
    """


class Stop:
    """Whether to stop. Signals set it; work inside `abandonable` is interrupted by them."""

    def __init__(self) -> None:
        self.event = Event()
        self._abandonable = False

    @property
    def requested(self) -> bool:
        return self.event.is_set()

    def request(self) -> None:
        self.event.set()

    @contextmanager
    def abandonable(self) -> Iterator[None]:
        """Main thread only. What runs here must be as safe to interrupt as to kill: it is replayed.

        Raises Abandoned at the next bytecode after a signal, or at once where a stop was asked before.
        """
        self._abandonable = True
        try:
            if self.requested:
                raise Abandoned
            yield
        finally:
            self._abandonable = False

    @contextmanager
    def listen(self) -> Iterator[None]:
        """SIGTERM and SIGINT ask for a stop; a second one has its ordinary effect."""
        before = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        self.event.set()
        if self._abandonable:
            self._abandonable = False
            raise Abandoned
