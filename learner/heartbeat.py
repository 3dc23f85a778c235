"""The learner's heartbeat: what it does now, written to `processes` every HEARTBEAT_SECONDS.

A thread of its own writes it, because a training step takes minutes, and a process that is silent for
GONE_SECONDS counts as gone.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import Event, Lock, Thread

from sqlalchemy.exc import SQLAlchemyError

from dukou.store.processes import HEARTBEAT_SECONDS, STOPPED, Heartbeat, LearnerDetail
from learner.stop import Clock

RETRY_SECONDS = 0.2  # until the next try where a heartbeat could not be written

#: Writes a heartbeat to Postgres; False where there is no connection yet.
Write = Callable[[Heartbeat], bool]


class HeartbeatWriter:
    """The present heartbeat of one process: the loop's threads change it, a thread of its own writes it."""

    def __init__(self, name: str, detail: LearnerDetail) -> None:
        self._lock = Lock()
        self._detail = detail
        self._current = Heartbeat(name, "starting", detail=detail)

    def show(self, doing: str, waits_for: str | None = None) -> None:
        """Replaces what the process does, and the sentence that says what it waits for."""
        with self._lock:
            self._current = replace(self._current, doing=doing, waits_for=waits_for)

    def note_judge_paused(self, because: str | None) -> None:
        """Why no turn can be scored now; None: scoring works."""
        with self._lock:
            self._set_detail(replace(self._detail, judge_paused=because))

    def note_trouble(self, because: str | None) -> None:
        """Why the last round of training failed; None: it did not."""
        with self._lock:
            self._set_detail(replace(self._detail, trouble=because))

    def _set_detail(self, detail: LearnerDetail) -> None:
        self._detail = detail
        self._current = replace(self._current, detail=detail)

    def current(self) -> Heartbeat:
        """The heartbeat as it would be written now."""
        return self._current

    def write_until(self, stop: Event, clock: Clock, write: Write) -> None:
        """Writes now and every HEARTBEAT_SECONDS, and at the end that the process stopped."""
        while not stop.is_set():
            clock.wait(stop, HEARTBEAT_SECONDS if self._written(write) else RETRY_SECONDS)
        self.show(STOPPED)
        self._written(write)

    def _written(self, write: Write) -> bool:
        """Tries to write. A failure is not logged: the loop itself says why Postgres is away."""
        with suppress(SQLAlchemyError):
            return write(self.current())
        return False

    @contextmanager
    def running(self, clock: Clock, write: Write) -> Iterator[None]:
        """Writes from a background thread while the block runs."""
        stop = Event()
        thread = Thread(target=self.write_until, args=(stop, clock, write), name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(HEARTBEAT_SECONDS)
