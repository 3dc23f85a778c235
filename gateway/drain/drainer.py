"""One pass of the drainer: what is in the spool becomes rows.

A pass reads on in the segments, makes turns of the requests that ended, places and writes them in one
transaction, and only then moves the positions. Whatever fails in between is done again from the same place.

An error of Postgres or the disk ends the pass. Every other error is one record's, whatever it is: a batch is
halved until that record is alone, and the others go on. The record is kept with its error, and becomes a row
with the reason `unreadable` where it has a plausible turn id.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from sqlalchemy import Engine

from dukou.settings.model import Config
from dukou.store import policies, processes, sessions, set_aside
from dukou.store.processes import HEARTBEAT_SECONDS, DrainerDetail, Heartbeat
from gateway.drain import faults, feedback, relink, unreadable
from gateway.drain.assemble import Draft, assemble
from gateway.drain.faults import Fault
from gateway.drain.report import DrainerReport
from gateway.drain.upkeep import Upkeep
from gateway.drain.write import Outcome, record
from gateway.spool.reader import Pair, SpoolReader

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
    _unrecorded_count: int = 0
    _unclear: tuple[str, str | None] | None = None  # the kind of error that ended the last pass
    #: When a turn was last written, or none waited to be, in seconds since 1970.
    advanced_at: float = field(default=0.0)

    def __post_init__(self) -> None:
        self._upkeep = Upkeep(self.config.storage)
        self.advanced_at = self.advanced_at or self.now()

    @property
    def is_idle(self) -> bool:
        """Whether everything that could be read is settled, or waits for its parent."""
        return not self._ready and self.reader.is_caught_up

    def drain_once(self, database: Engine) -> int:
        """One pass. Returns how many requests were settled.

        Raises:
            SQLAlchemyError: Postgres is away, or not what it should be; the pass can be repeated.
            OSError: the spool cannot be read just now; likewise.
        """
        if self._policy_id is None:
            with database.begin() as connection:
                self._policy_id = policies.default(connection, self.config).id
        self._upkeep.look(database, self.now())
        if not self._ready:
            self._ready = self.reader.scan(self.now(), SCAN_BYTES)
        self._beat(database)
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
        self._unclear = None
        if settled or not self._late():
            self.advanced_at = self.now()
        self._close_idle(database)
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
                draft = assemble(*self.reader.load(pair), self._policy_id, self.config.privacy.store_false)
            except Exception as error:  # whatever one record holds, it must not stop all others
                self._refuse(database, pair, error)
            else:
                if draft.unrecorded:  # spooled by a worker with other settings
                    self._settled.append(pair.id)
                    self._unrecorded_count += 1
                else:
                    items.append(_Item(draft, pair, self.now()))
        return items

    def _write(self, database: Engine, items: Sequence[_Item]) -> None:
        """Writes in one transaction; where one record makes that fail, halves until it is alone."""
        if not items:
            return
        try:
            outcome = self._record(database, items)
        except Exception as error:  # one record's fault, or raised again
            if len(items) == 1:
                self._refuse(database, items[0].pair, error)
                return
            if not self._is_a_records(error):
                raise
        else:
            self._note(items, outcome)
            return
        middle = len(items) // 2
        self._write(database, items[:middle])
        self._write(database, items[middle:])

    def _write_feedback(self, database: Engine, pairs: Sequence[Pair]) -> None:
        for pair in pairs:
            try:
                said = feedback.read(self.reader.load(pair)[0])
                with database.begin() as connection:
                    feedback.write(connection, [said])
            except Exception as error:  # that record's fault, or raised again by `_refuse`
                self._refuse(database, pair, error)
            else:
                self._settled.append(pair.id)

    def _is_a_records(self, error: Exception) -> bool:
        """Whether to look for the record that an error is about.

        Where it is unclear who is at fault, the pass is tried once more; the same error again is a record's.
        """
        fault, before = faults.fault_of(error), self._unclear
        if fault is Fault.UNCLEAR:
            self._unclear = faults.likeness(error)
        return fault is Fault.RECORD or (fault is Fault.UNCLEAR and self._unclear == before)

    def _refuse(self, database: Engine, pair: Pair, error: Exception) -> None:
        """Settles a record without its turn. Raises the error where it is not the record's."""
        if not self._is_a_records(error):
            raise error
        said, turn_id = faults.words_of(error), _uuid(pair.id)
        draft = self._unreadable(pair, said)
        if draft is None or not self._keep(database, pair, said, draft, error):
            with database.begin() as connection:
                set_aside.put(connection, turn_id, said, self.reader.raw(pair))
        _log.error("%s is set aside: %s", pair.id, said.partition("\n")[0])
        self._waiting.pop(turn_id, None)
        self._settled.append(pair.id)
        self._aside_count += 1

    def _unreadable(self, pair: Pair, said: str) -> Draft | None:
        if pair.is_feedback or pair.damage is not None:
            return None
        now = datetime.fromtimestamp(self.now(), UTC)
        return unreadable.draft_of(*self.reader.load(pair), said, self._policy_id, now)

    def _keep(self, database: Engine, pair: Pair, said: str, draft: Draft, error: Exception) -> bool:
        """Sets the records aside and writes the row that says so; False where even that row is refused.

        Raises `error` where Postgres may be at fault after all: it takes not even this row.
        """
        try:
            with database.begin() as connection:
                set_aside.put(connection, draft.request.id, said, self.reader.raw(pair))
                record(connection, [draft], lambda _: False, max_turns=1, now=draft.request.started_at)
        except Exception as refused:  # the record is only set aside, or an error is raised again
            if faults.fault_of(refused) is Fault.SERVICE:
                raise
            if faults.fault_of(error) is not Fault.RECORD:
                raise error from refused
            return False
        return True

    def _record(self, database: Engine, items: Iterable[_Item]) -> Outcome:
        moment = datetime.fromtimestamp(self.now(), UTC)
        drafts = [item.draft for item in items]
        with database.begin() as connection:
            return record(
                connection, drafts, self._may_wait, max_turns=self.config.session.max_turns, now=moment
            )

    def _note(self, items: Iterable[_Item], outcome: Outcome) -> None:
        """After the commit: who waits on, and who is settled."""
        late = {draft.request.id for draft in outcome.waiting}
        for item in items:
            turn_id = item.draft.request.id
            if turn_id in late:
                self._waiting.setdefault(turn_id, item)
            else:
                self._waiting.pop(turn_id, None)
                self._settled.append(item.pair.id)

    def _may_wait(self, draft: Draft) -> bool:
        known = self._waiting.get(draft.request.id)
        if known is None:
            return sum(item.draft.size for item in self._waiting.values()) < WAITING_BYTES
        # A parent may also stand further on in a backlog, however old it is.
        return self.now() - known.since < PATIENCE or self._has_more

    def _late(self) -> list[Pair]:
        """Requests that ended and are not written."""
        return [*self._ready, *(item.pair for item in self._waiting.values())]

    def report(self, at: float, trouble: str | None = None) -> DrainerReport:
        """Where the drainer stands; `trouble` is why nothing can be written just now."""
        moment = datetime.fromtimestamp(at, UTC)
        came = [unreadable.time_of(pair.id, moment) for pair in self._late()]
        return DrainerReport(
            at=at,
            oldest=min((known.timestamp() for known in came if known is not None), default=None),
            advanced_at=self.advanced_at,
            waiting={
                "reply": self.reader.waiting,
                "parent": len(self._waiting),
                "write": len(self._ready),
            },
            settled=self._settled_count,
            set_aside=self._aside_count,
            unrecorded=self._unrecorded_count,
            trouble=trouble,
        )

    def _beat(self, database: Engine) -> None:
        """Says in Postgres that the drainer lives; before the work that may fail, so that this is seen."""
        now = self.now()
        if now - self._beat_at < HEARTBEAT_SECONDS:
            return
        detail = DrainerDetail(
            in_flight=self.reader.waiting,
            to_write=len(self._ready),
            waiting_for_parent=len(self._waiting),
            advanced_ago=round(max(0.0, now - self.advanced_at), 1) if self._late() else 0.0,
        )
        heartbeat = Heartbeat("drainer", "idle" if self.is_idle else "draining", detail=detail)
        with database.begin() as connection:
            processes.beat(connection, heartbeat)
        self._beat_at = now

    def _close_idle(self, database: Engine) -> None:
        """Ends sessions that nobody went on with. One whose turns are still in the spool only looks idle."""
        now = self.now()
        if now - self._sweep_at >= SWEEP and self.is_idle:
            moment = datetime.fromtimestamp(now, UTC)
            since = moment - timedelta(seconds=self.config.session.idle_seconds)
            with database.begin() as connection:
                sessions.close_idle(connection, since, moment)
                relink.sweep(connection, moment)
            self._sweep_at = now


def _uuid(turn_id: str) -> UUID:
    try:
        return UUID(turn_id)
    except ValueError:  # a record that no gateway of ours wrote
        return UUID(bytes=hashlib.blake2b(turn_id.encode(), digest_size=16).digest())
