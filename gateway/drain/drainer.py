"""One pass of the drainer: what is in the spool becomes rows.

A pass reads on in the segments, makes turns of the requests that ended, places and writes them in one
transaction, and only then moves the positions. Whatever fails in between is done again from the same place.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from sqlalchemy import Engine
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, StatementError

from gateway.drain import feedback, relink
from gateway.drain.assemble import Draft, assemble
from gateway.drain.record import Outcome, record
from gateway.drain.report import BEAT, Report
from gateway.drain.upkeep import Upkeep
from gateway.spool.reader import Pair, SpoolReader
from store import policies, processes, sessions, turns
from store.config_model import Config

_log = logging.getLogger(__name__)

BATCH_TURNS = 500
BATCH_BYTES = 16 * 2**20  # of records; a larger one is a batch of its own
SCAN_BYTES = 8 * 2**20  # read in one pass, and kept until it is written
WAITING_BYTES = 16 * 2**20  # of drafts that wait for their parent
LOOK = 0.25  # seconds between looks for a parent that another gateway may have written
PATIENCE = 2.0  # seconds that a turn waits for a parent that another worker or gateway is about to write
SWEEP = 10.0  # seconds between looks for idle sessions


@dataclass(frozen=True, slots=True)
class _Item:
    """A draft on its way, from the moment that its records were read."""

    draft: Draft
    pair: Pair
    since: float


@dataclass(slots=True)
class Drainer:
    """What lasts from pass to pass. `now` gives the seconds since 1970, and may be a test's own clock."""

    config: Config
    reader: SpoolReader
    now: Callable[[], float] = time.time
    _ready: list[Pair] = field(default_factory=list)
    _waiting: dict[UUID, _Item] = field(default_factory=dict)
    _settled: list[str] = field(default_factory=list)  # durable, and not yet said to the reader
    _upkeep: Upkeep = field(init=False)
    _policy_id: int | None = None
    _looked_at: float = 0.0
    _beat_at: float = 0.0
    _sweep_at: float = 0.0
    _has_more: bool = False  # requests that ended, behind the present batch
    _settled_count: int = 0
    _aside_count: int = 0

    def __post_init__(self) -> None:
        self._upkeep = Upkeep(self.config.storage)

    @property
    def is_idle(self) -> bool:
        """Whether everything that could be read is settled, or waits for its parent."""
        return not self._ready and self.reader.is_caught_up

    def drain_once(self, database: Engine) -> int:
        """One pass. Returns how many requests were settled.

        Raises:
            DBAPIError: Postgres is away, or not what it should be; the pass can be repeated.
            OSError: the spool cannot be read just now; likewise.
        """
        if self._policy_id is None:
            with database.begin() as connection:
                self._policy_id = policies.default(connection, self.config).id
        self._upkeep.look(database, self.now())
        if not self._ready:
            self._ready = self.reader.scan(self.now(), SCAN_BYTES)
        batch = self._next_batch()
        self._has_more = len(batch) < len(self._ready) or not self.reader.is_caught_up
        items = self._assemble(database, [pair for pair in batch if not pair.is_feedback])
        self._write(database, [*self._due(bool(items)), *items])
        self._write_feedback(database, [pair for pair in batch if pair.is_feedback])
        del self._ready[: len(batch)]
        settled = len(self._settled)
        self._settled_count += settled
        self.reader.settle(self._settled)
        self._settled.clear()
        self._housekeep(database)
        return settled

    def _due(self, news: bool) -> list[_Item]:
        """Those who wait for their parent: looked for with every batch, and now and then without one."""
        if not news and self.now() - self._looked_at < LOOK:
            return []
        self._looked_at = self.now()
        return list(self._waiting.values())

    def _next_batch(self) -> list[Pair]:
        batch: list[Pair] = []
        size = 0
        for pair in self._ready[:BATCH_TURNS]:
            size += pair.size
            if batch and size > BATCH_BYTES:
                break
            batch.append(pair)
        return batch

    def _assemble(self, database: Engine, batch: Sequence[Pair]) -> list[_Item]:
        """The drafts of a batch; what makes none is set aside."""
        items: list[_Item] = []
        for pair in batch:
            try:
                draft = assemble(*self.reader.load(pair), self._policy_id)
            except OSError:  # the disk's fault and not the record's
                raise
            except Exception as error:  # whatever one record holds, it must not stop all others
                self._put_aside(database, pair, error)
            else:
                items.append(_Item(draft, pair, self.now()))
        return items

    def _write(self, database: Engine, items: Sequence[_Item]) -> None:
        """Writes in one transaction; one by one where Postgres refuses a row."""
        if not items:
            return
        try:
            self._note(items, self._record(database, items))
            return
        except (StatementError, ValueError) as error:
            if not _is_refusal(error):
                raise
        for item in items:
            try:
                self._note([item], self._record(database, [item]))
            except (StatementError, ValueError) as error:
                if not _is_refusal(error):
                    raise
                self._put_aside(database, item.pair, error)
                self._waiting.pop(item.draft.asked.id, None)

    def _write_feedback(self, database: Engine, pairs: Sequence[Pair]) -> None:
        for pair in pairs:
            try:
                said = feedback.read(self.reader.load(pair)[0])
                with database.begin() as connection:
                    feedback.write(connection, [said])
            except OSError:
                raise
            except Exception as error:  # whatever one record holds, it must not stop all others
                if isinstance(error, DBAPIError) and not _is_refusal(error):
                    raise
                self._put_aside(database, pair, error)
            else:
                self._settled.append(pair.id)

    def _record(self, database: Engine, items: Iterable[_Item]) -> Outcome:
        moment = datetime.fromtimestamp(self.now(), UTC)
        drafts = [item.draft for item in items]
        with database.begin() as connection:
            return record(
                connection, drafts, self._may_wait, max_turns=self.config.session.max_turns, now=moment
            )

    def _note(self, items: Iterable[_Item], outcome: Outcome) -> None:
        """After the commit: who waits on, and who is settled."""
        late = {draft.asked.id for draft in outcome.waiting}
        for item in items:
            turn_id = item.draft.asked.id
            if turn_id in late:
                self._waiting.setdefault(turn_id, item)
            else:
                self._waiting.pop(turn_id, None)
                self._settled.append(item.pair.id)

    def _may_wait(self, draft: Draft) -> bool:
        known = self._waiting.get(draft.asked.id)
        if known is None:
            return sum(item.draft.size for item in self._waiting.values()) < WAITING_BYTES
        # A parent may also stand further on in a backlog, however old it is.
        return self.now() - known.since < PATIENCE or self._has_more

    def _put_aside(self, database: Engine, pair: Pair, error: Exception) -> None:
        said = (
            str(error.orig if isinstance(error, DBAPIError) else error).replace("\0", "")
            or type(error).__name__
        )
        _log.error("turn %s is set aside: %s", pair.id, said.partition("\n")[0])
        with database.begin() as connection:
            turns.put_aside(connection, _uuid(pair.id), said, self.reader.raw(pair))
        self._settled.append(pair.id)
        self._aside_count += 1

    def report(self, at: float, trouble: str | None = None) -> Report:
        """Where the drainer stands; `trouble` is why nothing can be written just now."""
        late = [*self._ready, *(item.pair for item in self._waiting.values())]
        return Report(
            at=at,
            oldest=min((_came_at(pair.id) for pair in late), default=None),
            waiting={
                "reply": self.reader.waiting,
                "parent": len(self._waiting),
                "write": len(self._ready),
            },
            settled=self._settled_count,
            set_aside=self._aside_count,
            trouble=trouble,
        )

    def _housekeep(self, database: Engine) -> None:
        now = self.now()
        if now - self._beat_at >= BEAT:
            doing = "idle" if self.is_idle else "draining"
            detail = {
                "in_flight": self.reader.waiting,
                "to_write": len(self._ready),
                "waiting_for_parent": len(self._waiting),
            }
            with database.begin() as connection:
                processes.beat(connection, "drainer", doing, None, detail)
            self._beat_at = now
        # A session whose turns are still in the spool only looks idle.
        if now - self._sweep_at >= SWEEP and self.is_idle:
            moment = datetime.fromtimestamp(now, UTC)
            since = moment - timedelta(seconds=self.config.session.idle_seconds)
            with database.begin() as connection:
                sessions.close_idle(connection, since, moment)
                relink.sweep(connection, moment)
            self._sweep_at = now


def _is_refusal(error: Exception) -> bool:
    """Whether Postgres, or the way to it, refuses a row's values; else the trouble is Postgres itself."""
    state = getattr(error.orig, "sqlstate", None) if isinstance(error, DBAPIError) else None
    too_large = state is not None and state.startswith("54")  # psycopg takes it for an outage
    return too_large or isinstance(error, DataError | IntegrityError) or not isinstance(error, DBAPIError)


def _came_at(turn_id: str) -> float:
    """When a request came, in seconds since 1970: a UUIDv7 begins with it."""
    return (_uuid(turn_id).int >> 80) / 1000


def _uuid(turn_id: str) -> UUID:
    try:
        return UUID(turn_id)
    except ValueError:  # a record that no gateway of ours wrote
        return UUID(bytes=hashlib.blake2b(turn_id.encode(), digest_size=16).digest())
