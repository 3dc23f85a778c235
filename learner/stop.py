"""Stopping on a signal, at once where work may be interrupted; and the clock behind the learner's delays."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from types import FrameType
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock that can wait; tests supply their own."""

    def now(self) -> float:
        """Seconds since some fixed moment."""
        ...

    def wait(self, event: Event, seconds: float) -> bool:
        """Waits until the event is set or the seconds have passed; True where it is set."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> float:
        return time.monotonic()

    def wait(self, event: Event, seconds: float) -> bool:
        return event.wait(seconds)


class Abandoned(BaseException):
    """Raised in work that is interrupted because the process stops.

    Not an Exception, so that no handler between the signal and the loop takes it for a fault and goes on.
    """


class Stop:
    """A request to stop, made by SIGTERM or SIGINT, which also interrupts work inside `abandonable`."""

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
        """Lets a signal interrupt the block. Main thread only.

        The block must be as safe to interrupt as the process is to kill: its work is replayed.

        Raises:
            Abandoned: at the next bytecode after a signal, or at once where a stop was requested before.
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
        """Makes SIGTERM and SIGINT request a stop within the block; a second one has its default effect."""
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
