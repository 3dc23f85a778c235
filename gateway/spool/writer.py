"""Appends records to this worker's own segment files.

Nothing here raises to its caller: a turn that cannot be recorded is served all the same, and the loss is
counted and said aloud. A segment's lock is held while one of its requests has no reply yet, so that a
free lock keeps meaning: what has no reply never will have one.
"""

import contextlib
import fcntl
import logging
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from dukou.settings.serving import Spool
from gateway.spool.format import Record, encode
from gateway.spool.reader import Positions
from gateway.spool.records import FeedbackRecord, ReplyRecord, RequestRecord

logger = logging.getLogger(__name__)

WARN_SHARE = 0.7
SAY_AGAIN = 60.0  # seconds between two log lines about the same trouble
_TICK_SECONDS = 1.0


@dataclass(slots=True)
class _Segment:
    path: Path
    descriptor: int
    size: int = 0
    open_turns: set[str] = field(default_factory=set)  # requests without a reply


class SpoolWriter:
    """One worker's end of the spool. Used by one event loop; a thread syncs and measures once a second."""

    def __init__(self, folder: Path, settings: Spool) -> None:
        self.lost = 0  # turns that were served and not recorded
        self.problem: str | None = None  # why, while it lasts
        self._said: dict[str, float] = {}  # trouble → when it was last logged
        self._folder = folder
        self._positions = Positions(folder / "positions.json")
        self._settings = settings
        #: Bytes of the whole spool that are not in Postgres yet, as of the last second.
        self.waiting_bytes = 0
        self._prefix = f"{os.getpid()}-{time.time_ns()}"
        self._number = 0
        self._segments: list[_Segment] = []  # the last one is written to
        self._where: dict[str, _Segment] = {}
        self._others_bytes = 0
        self._own_bytes = 0
        self._dirty = False
        self._lock = threading.Lock()  # between syncing a descriptor and closing it
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._every_second, name="spool", daemon=True)

    def open(self) -> None:
        """Makes the folder and the first segment. Raises OSError where that cannot be."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._measure()
        self._segments.append(self._new_segment())
        self._thread.start()

    @property
    def used_bytes(self) -> int:
        """Bytes of the whole spool, of every worker."""
        return self._others_bytes + self._own_bytes

    @property
    def limit_bytes(self) -> int:
        return self._settings.max_bytes

    @property
    def used_share(self) -> float:
        """Of `spool.max_bytes`."""
        return self.used_bytes / self._settings.max_bytes

    def request(self, record: RequestRecord) -> None:
        if self._append(record.encode()):
            segment = self._segments[-1]
            segment.open_turns.add(record.id)
            self._where[record.id] = segment
        else:
            self.lost += 1

    def reply(self, record: ReplyRecord) -> None:
        """Appends a reply where its request was recorded."""
        segment = self._where.pop(record.id, None)
        if segment is None:
            return
        if not self._append(record.encode()):
            self.lost += 1
        segment.open_turns.discard(record.id)

    def feedback(self, record: FeedbackRecord) -> bool:
        """Appends feedback; False where that failed: its client is told so."""
        return self._append(record.encode())

    @property
    def syncs_each_turn(self) -> bool:
        return self._settings.fsync == "always"

    def sync(self) -> None:
        """Blocks until everything appended so far has reached the disk."""
        with self._lock:
            self._dirty = False
            self._fsync(list(self._segments))

    def close(self) -> None:
        """Syncs and lets go of every segment; an unused one is removed."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._settings.fsync != "none":
            self.sync()
        while self._segments:
            segment = self._segments.pop()
            if segment.size == 0:
                segment.path.unlink(missing_ok=True)
            os.close(segment.descriptor)

    def _append(self, unwritten: Record) -> bool:
        record = encode(unwritten.kind, unwritten.meta, unwritten.body)
        if self.used_bytes + len(record) > self._settings.max_bytes:
            self._complain(f"the spool has reached spool.max_bytes ({self._settings.max_bytes})")
            return False
        try:
            segment = self._segment_for(len(record))
            self._write(segment, record)
        except OSError as error:
            self._complain(f"{error.strerror or error}")
            return False
        self.problem = None
        self._dirty = True
        return True

    def _write(self, segment: _Segment, record: bytes) -> None:
        """One write; what a full disk cuts short is taken back, or readers would stop there for ever."""
        try:
            written = os.write(segment.descriptor, record)
        except OSError:
            self._take_back(segment)
            raise
        if written != len(record):
            self._take_back(segment)
            raise OSError(None, "the disk is full")
        segment.size += written
        self._own_bytes += written

    def _take_back(self, segment: _Segment) -> None:
        try:
            os.ftruncate(segment.descriptor, segment.size)
        except OSError:
            segment.size = (
                self._settings.segment_bytes
            )  # never write behind a torn record: the next is elsewhere
            raise

    def _segment_for(self, length: int) -> _Segment:
        current = self._segments[-1]
        if current.size and current.size + length > self._settings.segment_bytes:
            self._segments.append(self._new_segment())
        return self._segments[-1]

    def _release_answered(self) -> None:
        """Syncs and lets go of full segments all of whose requests have their replies."""
        for segment in [old for old in self._segments[:-1] if not old.open_turns]:
            with self._lock:
                if self._settings.fsync != "none":
                    self._fsync([segment])
                self._segments.remove(segment)
                os.close(segment.descriptor)

    def _fsync(self, segments: list[_Segment]) -> None:
        try:
            for segment in segments:
                os.fsync(segment.descriptor)
        except OSError as error:
            self._complain(f"fsync: {error.strerror}")

    def _new_segment(self) -> _Segment:
        path = self._folder / f"{self._prefix}-{self._number}.seg"
        self._number += 1
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if self._settings.fsync != "none":
            _sync_names(self._folder)
        return _Segment(path, descriptor)

    def _every_second(self) -> None:
        while not self._stop.wait(_TICK_SECONDS):
            if self._dirty and self._settings.fsync == "interval":
                self.sync()
            self._release_answered()
            self._measure()
            if self.used_share >= WARN_SHARE and self._may_say("share"):
                logger.warning("the spool is %.0f%% full: is the drainer running?", 100 * self.used_share)

    def _measure(self) -> None:
        others = own = waiting = 0
        drained = self._positions.load()
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                if not entry.name.endswith(".seg"):
                    continue
                with contextlib.suppress(FileNotFoundError):  # the drainer deletes what it has read
                    size = entry.stat().st_size
                    waiting += max(0, size - drained.get(entry.name, 0))
                    if entry.name.startswith(self._prefix):
                        own += size
                    else:
                        others += size
        self._others_bytes, self._own_bytes, self.waiting_bytes = others, own, waiting

    def _complain(self, problem: str) -> None:
        self.problem = problem
        if self._may_say(problem):  # not once a request: the log may lie on the disk that is full
            logger.error("turns are served but not recorded (%d so far): %s", self.lost + 1, problem)

    def _may_say(self, what: str) -> bool:
        now = time.monotonic()
        if now - self._said.get(what, -SAY_AGAIN) < SAY_AGAIN:
            return False
        self._said[what] = now
        return True


def _sync_names(folder: Path) -> None:
    """A synced file whose name is not synced may be gone after a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
