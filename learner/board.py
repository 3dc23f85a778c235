"""What the learner does now, and the thread that reports it to `processes` every two seconds.

The report has a thread of its own because a training step takes minutes, and a learner that is silent for
15 seconds counts as gone.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import Event, Lock, Thread
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from learner.stop import Clock
from store.funnel import STOPPED, Beat

BEAT_SECONDS = 2.0
RETRY_SECONDS = 0.2

#: Writes a report; False where there is no database yet.
Write = Callable[[Beat], bool]


class Board:
    """What the process of this name does. Written by the loop's threads, read by the reporting one."""

    def __init__(self, name: str, **detail: Any) -> None:
        self._lock = Lock()
        self._beat = Beat(name, "starting", None, detail, age=0.0)

    def show(self, doing: str, waits_for: str | None = None) -> None:
        with self._lock:
            self._beat = replace(self._beat, doing=doing, waits_for=waits_for)

    def note(self, **detail: Any) -> None:
        """Facts for the status sentence: `scores`, `trains`, `judge_paused`, `trouble`."""
        with self._lock:
            self._beat = replace(self._beat, detail={**self._beat.detail, **detail})

    def beat(self) -> Beat:
        return self._beat

    def beat_until(self, stop: Event, clock: Clock, write: Write) -> None:
        """Reports now and every BEAT_SECONDS, and in the end that it stopped."""
        while not stop.is_set():
            clock.wait(stop, BEAT_SECONDS if self._report(write) else RETRY_SECONDS)
        self.show(STOPPED)
        self._report(write)

    def _report(self, write: Write) -> bool:
        """A report that fails is left out: the loop itself says why."""
        with suppress(SQLAlchemyError):
            return write(self.beat())
        return False

    @contextmanager
    def beating(self, clock: Clock, write: Write) -> Iterator[None]:
        """Reports from a thread of its own as long as the block runs."""
        stop = Event()
        thread = Thread(target=self.beat_until, args=(stop, clock, write), name="beat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(BEAT_SECONDS)
