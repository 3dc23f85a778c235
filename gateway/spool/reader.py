"""Reads the segments of every worker: pairs requests with replies, and knows what is settled.

Of a request that waits, for minutes perhaps, only its place is kept. What one scan has read whole is kept
until the turn is made of it, or the next scan begins: `budget` bounds it. All else is read again then.

A segment's records from a place on, read in large pieces: a read for each costs more than what is read.

How far each segment is drained, on disk. Written after the commit: what is read twice is written once.
"""

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from gateway.spool import format as spool

_PIECE = 256 * 1024  # bytes
_LONGEST_HEAD = 64  # bytes; more than any version's


class BulkReader:
    """What lies in an open file around the place that was asked for last."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.length = os.fstat(descriptor).st_size  # bytes of the file when it was opened
        self._start = 0
        self._data = b""

    def record(self, offset: int) -> tuple[spool.Record, int] | None:
        """The record at `offset` and its size; None where the file ends inside it.

        Raises:
            CorruptRecordError: there is no record here, or a damaged one.
        """
        found = self._decode(offset)
        left = self.length - offset
        if found is not None or left <= 0:
            return found
        self._load(offset, min(_PIECE, left))
        found = self._decode(offset)
        if found is not None:
            return found
        head = spool.head(self._data)
        if head is None or not len(self._data) < head.size <= left:
            return None
        self._load(offset, head.size)  # longer than a piece
        return self._decode(offset)

    def behind(self, offset: int, size: int | None) -> int | None:
        """Where to read on behind the damaged record at `offset`; None: no whole record follows.

        Args:
            size: of the damaged record, where it is known. It is believed where a record begins there, or the
                file ends: bytes may be missing too.
        """
        if size is not None and self._may_begin(offset + size):
            return offset + size
        rest = os.pread(self._descriptor, max(0, self.length - offset - 1), offset + 1)
        for match in spool.MAGIC.finditer(rest):
            try:
                if spool.decode(rest, match.start()) is not None:
                    return offset + 1 + match.start()
            except spool.CorruptRecordError:
                pass
        return None

    def _may_begin(self, offset: int) -> bool:
        """Whether a record begins at `offset`, or may begin: the file ends there, or in its head."""
        if offset > self.length:
            return False
        try:
            spool.head(os.pread(self._descriptor, _LONGEST_HEAD, offset))
        except spool.CorruptRecordError as error:
            return error.size is not None
        return True

    def _load(self, offset: int, size: int) -> None:
        self._start = offset
        self._data = os.pread(self._descriptor, size, offset)

    def _decode(self, offset: int) -> tuple[spool.Record, int] | None:
        at = offset - self._start
        found = spool.decode(self._data, at)
        return None if found is None else (found[0], found[1] - at)


_log = logging.getLogger(__name__)


class Positions:
    """A JSON file of segment name → bytes, replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._saved: dict[str, int] = {}

    def load(self) -> dict[str, int]:
        """What was saved; empty where there is nothing that can be read: everything is then read again."""
        try:
            found = orjson.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except orjson.JSONDecodeError:
            _log.warning("%s cannot be read: all segments are read again", self._path.name)
            return {}
        is_offset = (isinstance(found, dict) and found) or {}
        return {
            str(name): offset for name, offset in is_offset.items() if isinstance(offset, int) and offset >= 0
        }

    def save(self, offsets: Mapping[str, int]) -> None:
        if dict(offsets) == self._saved:
            return
        beside = self._path.with_suffix(".tmp")
        beside.write_bytes(orjson.dumps(dict(offsets)))
        os.replace(beside, self._path)
        self._saved = dict(offsets)


_YOUNG = 1.0  # seconds after which a new file's writer has surely locked it


@dataclass(frozen=True, slots=True)
class Where:
    """A record's place."""

    path: Path
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Pair:
    """A request and its reply; `reply` None: its worker died before it, or it is feedback, which has none."""

    id: str
    request: Where
    reply: Where | None
    is_feedback: bool = False
    damage: str | None = None  # why the bytes at `request` are no record; None: they are one

    @property
    def size(self) -> int:
        return self.request.size + (self.reply.size if self.reply is not None else 0)


@dataclass(slots=True)
class _Segment:
    path: Path
    seen_at: float
    offset: int  # where the next unread record begins
    unsettled: dict[str, int] = field(default_factory=dict)  # request id → offset, until its turn is durable
    is_at_end: bool = False
    is_closed: bool = False  # its writer let go of it: nothing more comes

    @property
    def settled(self) -> int:
        """Everything before this offset is durable elsewhere."""
        return min(self.unsettled.values(), default=self.offset)


class SpoolReader:
    """One drainer's view of the spool folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._positions = Positions(folder / "positions.json")
        self._segments: dict[Path, _Segment] = {}
        self._requests: dict[str, Where] = {}  # waiting for their replies
        self._read_now: dict[str, list[spool.Record]] = {}  # in this scan, or the last: by turn
        self._started_from = self._positions.load()
        self._forgets = False  # whether the positions on disk are older than they should be

    def scan(self, now: float, budget: int) -> list[Pair]:
        """Reads on in every segment, `budget` bytes at most in all, and returns the requests that ended.

        Args:
            now: seconds on any clock that only grows.
        """
        # Before anything else: once a lock is free, every reply to the segment's requests is on disk already,
        # perhaps in a segment that is only found below.
        for segment in self._segments.values():
            segment.is_closed = segment.is_closed or (
                now - segment.seen_at >= _YOUNG and _is_free(segment.path)
            )
        self._find_segments(now)
        self._read_now.clear()
        pairs: list[Pair] = []
        for segment in self._segments.values():
            budget -= self._read(segment, budget, pairs)
        for turn_id in self._requests.keys() & self._read_now.keys():
            del self._read_now[turn_id]
        if self.is_caught_up:
            pairs += self._interrupted()
        return pairs

    @property
    def is_caught_up(self) -> bool:
        """Whether the last scan read every segment to its end."""
        return all(segment.is_at_end for segment in self._segments.values())

    @property
    def waiting(self) -> int:
        """Requests whose reply has not come yet."""
        return len(self._requests)

    def load(self, pair: Pair) -> tuple[spool.Record, spool.Record | None]:
        """The records of a pair.

        Raises:
            CorruptRecordError: they are damaged, or changed since the scan.
            OSError: the disk cannot be read.
        """
        if pair.damage is not None:
            raise spool.CorruptRecordError(pair.damage)
        records = () if pair.is_feedback else self._read_now.pop(pair.id, ())
        known = {record.kind: record for record in records}
        request = known.get(spool.Kind.REQUEST) or _decoded(pair.request)
        if request is None:
            raise spool.CorruptRecordError(f"the request {pair.id} has lost its end")
        if pair.reply is None:
            return request, None
        return request, known.get(spool.Kind.REPLY) or _decoded(pair.reply)

    def raw(self, pair: Pair) -> bytes:
        """The bytes of a pair's records, one after the other."""
        return b"".join(_bytes(where) for where in (pair.request, pair.reply) if where is not None)

    def settle(self, ids: Iterable[str]) -> None:
        """These turns are durable: remembers how far each segment is, and deletes those that are done."""
        for turn_id in ids:
            for segment in self._segments.values():
                segment.unsettled.pop(turn_id, None)
        self._remember()
        for segment in list(self._segments.values()):
            if segment.is_closed and segment.is_at_end and not segment.unsettled:
                self._delete(segment)

    def _remember(self) -> None:
        """A full disk must not keep finished segments from being deleted: that is what frees it."""
        try:
            self._positions.save({path.name: segment.settled for path, segment in self._segments.items()})
        except OSError as error:
            if not self._forgets:
                _log.error("positions cannot be saved, a restart reads again what is written: %s", error)
            self._forgets = True
        else:
            self._forgets = False

    def _delete(self, segment: _Segment) -> None:
        left = segment.path.stat().st_size - segment.offset if segment.path.exists() else 0
        if left:
            _log.warning("%s ends in %d bytes of a record that was never completed", segment.path.name, left)
        segment.path.unlink(missing_ok=True)
        del self._segments[segment.path]

    def _find_segments(self, now: float) -> None:
        found = set(self._folder.glob("*.seg")) if self._folder.is_dir() else set()
        for path in sorted(found - self._segments.keys(), key=_age):
            self._segments[path] = _Segment(path, now, self._started_from.pop(path.name, 0))
        for path in self._segments.keys() - found:
            del self._segments[path]

    def _read(self, segment: _Segment, budget: int, pairs: list[Pair]) -> int:
        """Reads one segment on; returns the bytes that were read."""
        used = 0
        with (
            contextlib.suppress(FileNotFoundError),
            segment.path.open("rb") as file,
        ):  # unused ones are removed
            bulk = BulkReader(file.fileno())
            while used < budget and (found := self._next(segment, bulk)) is not None:
                used += found[1].size
                self._take(segment, *found, pairs)
        segment.is_at_end = used < budget
        return used

    def _next(self, segment: _Segment, bulk: BulkReader) -> tuple[spool.Record | str, Where] | None:
        """The next whole record, or what is wrong with the bytes before it; None at the end of the segment.

        A record that the segment ends in is the end too: its writer may still complete it, or died in it.
        """
        start = segment.offset
        found: spool.Record | str
        try:
            decoded = bulk.record(start)
        except spool.CorruptRecordError as error:
            found, end = str(error), bulk.behind(start, error.size)
            if end is None or end == bulk.length:
                end = bulk.length if segment.is_closed else None
        else:
            if decoded is not None:
                found, end = decoded[0], start + decoded[1]
            elif segment.is_closed:  # in version 1 a damaged length reads like the end
                found, end = f"the record at byte {start} has no end", bulk.behind(start, None)
            else:
                return None
        if end is None:
            return None
        segment.offset = end
        return found, Where(segment.path, start, end - start)

    def _take(self, segment: _Segment, record: spool.Record | str, where: Where, pairs: list[Pair]) -> None:
        if isinstance(record, str):
            self._take_damaged(segment, where, record, pairs)
            return
        turn_id = record.meta.get("id")
        if not isinstance(turn_id, str):
            self._take_damaged(segment, where, "the record has no id", pairs)
        elif record.kind is spool.Kind.REQUEST:
            self._requests[turn_id] = where
            self._read_now[turn_id] = [record]
            segment.unsettled[turn_id] = where.offset
        elif record.kind is spool.Kind.FEEDBACK:
            segment.unsettled.setdefault(turn_id, where.offset)  # sent twice under one key, it is one
            pairs.append(Pair(turn_id, where, None, is_feedback=True))
        else:
            self._take_reply(segment, turn_id, record, where, pairs)

    def _take_damaged(self, segment: _Segment, where: Where, damage: str, pairs: list[Pair]) -> None:
        """Bytes that belong to no turn: they are kept under the name of their place."""
        name = f"{segment.path.name}:{where.offset}"
        segment.unsettled[name] = where.offset
        pairs.append(Pair(name, where, None, damage=damage))

    def _take_reply(
        self, segment: _Segment, turn_id: str, record: spool.Record, where: Where, pairs: list[Pair]
    ) -> None:
        request = self._requests.pop(turn_id, None)
        if request is None:  # settled before a restart
            return
        self._read_now.setdefault(turn_id, []).append(record)
        # The reply's segment has to stay as long as its turn is not durable.
        segment.unsettled.setdefault(turn_id, where.offset)
        pairs.append(Pair(turn_id, request, where))

    def _interrupted(self) -> list[Pair]:
        """Requests that never will have a reply."""
        closed = {segment.path for segment in self._segments.values() if segment.is_closed}
        lost = {turn_id: where for turn_id, where in self._requests.items() if where.path in closed}
        for turn_id in lost:
            del self._requests[turn_id]
        return [Pair(turn_id, where, None) for turn_id, where in lost.items()]


@contextlib.contextmanager
def only_drainer(folder: Path) -> Iterator[bool]:
    """Whether this process is the one that may drain the folder, for as long as the context lasts."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "drainer.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _is_free(path: Path) -> bool:
    """Whether no worker holds the segment."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return True
    return True


def _bytes(where: Where) -> bytes:
    descriptor = os.open(where.path, os.O_RDONLY | os.O_CLOEXEC)  # a third of what a file object costs
    try:
        return os.pread(descriptor, where.size, where.offset)
    finally:
        os.close(descriptor)


def _decoded(where: Where) -> spool.Record | None:
    decoded = spool.decode(_bytes(where))
    return decoded[0] if decoded is not None else None


def _age(path: Path) -> tuple[int, int]:
    """Writers' start and number: replies come after their requests. Foreign names come last."""
    try:
        _, started, number = path.stem.split("-")
        return int(started), int(number)
    except ValueError:
        return 2**63, 0
