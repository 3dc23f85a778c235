"""Heartbeats: what each process does and waits for, one row of `processes` per process.

`learner status`, the status page and the SQL view `funnel` read them.

Leases: who alone may do a thing for a while, with a token that grows with every acquisition.

A lease may be lost while its holder is asleep. So what the holder writes goes through `check` in the same
transaction, which fails for a token that is no longer the newest: a late write never lands.

Engines as their reconciler last saw them: one row a URL.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import Connection, DateTime, Interval, cast, extract, func, literal, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.elements import ColumnElement

from dukou.errors import DukouError
from dukou.store.tables import engines, leases, processes

HEARTBEAT_SECONDS = 2.0  # between two heartbeats of a process
GONE_SECONDS = 15.0  # after the last heartbeat: the process counts as gone

#: `doing` in the last heartbeat of a process that ended in order.
STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class DrainerDetail:
    """Requests in the spool, by what they wait for; None: unknown, also in the rows of older releases."""

    in_flight: int | None = None  # for their reply
    to_write: int | None = None  # to be written to Postgres
    waiting_for_parent: int | None = None  # for the turn before them
    advanced_ago: float | None = None  # seconds since a turn was last written, or since none waited to be

    @property
    def late(self) -> int:
        """Requests that have ended and are not turns yet."""
        return (self.to_write or 0) + (self.waiting_for_parent or 0)

    @property
    def undrained(self) -> int | None:
        """Requests that are not turns yet; None where one of the counts is unknown."""
        if self.in_flight is None or self.to_write is None or self.waiting_for_parent is None:
            return None
        return self.in_flight + self.to_write + self.waiting_for_parent

    @staticmethod
    def decode(detail: Mapping[str, Any]) -> "DrainerDetail":
        """Ignores unknown keys; a missing key or one of another type is None."""
        advanced_ago = detail.get("advanced_ago")
        return DrainerDetail(
            in_flight=_count(detail, "in_flight"),
            to_write=_count(detail, "to_write"),
            waiting_for_parent=_count(detail, "waiting_for_parent"),
            advanced_ago=advanced_ago if isinstance(advanced_ago, int | float) else None,
        )


@dataclass(frozen=True, slots=True)
class LearnerDetail:
    """What a process of the learner takes part in, and what keeps it from doing so."""

    scores: bool = False
    trains: bool = False
    judge_paused: str | None = None  # why no turn can be scored now
    trouble: str | None = None  # why the last round of training failed

    @staticmethod
    def decode(detail: Mapping[str, Any]) -> "LearnerDetail":
        """Ignores unknown keys and fills in missing ones."""
        return LearnerDetail(
            scores=bool(detail.get("scores")),
            trains=bool(detail.get("trains")),
            judge_paused=_sentence(detail, "judge_paused"),
            trouble=_sentence(detail, "trouble"),
        )


#: Name of a process → what its `detail` holds. Other processes, such as the reconciler, have no detail.
DETAILS: dict[str, type[DrainerDetail] | type[LearnerDetail]] = {
    "drainer": DrainerDetail,
    **dict.fromkeys(("learner", "scorer", "batcher", "trainer", "publisher"), LearnerDetail),
}


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a process reports of itself; `age` is in seconds, by the database's clock, and is not written.

    `waits_for` is the sentence that people read, None where the process waits for nothing.
    """

    name: str
    doing: str
    waits_for: str | None = None
    detail: DrainerDetail | LearnerDetail | None = None
    age: float = 0.0

    @property
    def alive(self) -> bool:
        """The process reported within GONE_SECONDS, and not that it stopped."""
        return self.age <= GONE_SECONDS and self.doing != STOPPED

    @property
    def drainer(self) -> DrainerDetail:
        """The detail of a drainer; all unknown for another process."""
        return self.detail if isinstance(self.detail, DrainerDetail) else DrainerDetail()

    @property
    def learner(self) -> LearnerDetail:
        """The detail of a process of the learner; nothing set for another process."""
        return self.detail if isinstance(self.detail, LearnerDetail) else LearnerDetail()

    def encode_detail(self) -> dict[str, Any] | None:
        """The column `detail`: a JSON object, or None."""
        return None if self.detail is None else asdict(self.detail)

    @staticmethod
    def decode_detail(name: str, detail: Mapping[str, Any] | None) -> DrainerDetail | LearnerDetail | None:
        """The column `detail` of the process of this name."""
        kind = DETAILS.get(name)
        return None if kind is None or detail is None else kind.decode(detail)


def start(connection: Connection, name: str, doing: str) -> None:
    """Writes the row of a process that begins; a row of an earlier run begins anew."""
    _write(connection, Heartbeat(name, doing), {"started_at": func.now()})


def beat(connection: Connection, heartbeat: Heartbeat) -> None:
    """Writes a heartbeat over the process's last one."""
    _write(connection, heartbeat, {})


def heartbeats(connection: Connection) -> tuple[Heartbeat, ...]:
    """The last heartbeat of every process, by name."""
    p = processes.c
    age = extract("epoch", func.now() - p.beat_at)
    rows = connection.execute(select(p.name, p.doing, p.waits_for, p.detail, age).order_by(p.name))
    return tuple(
        # extract() answers numeric; a row of this very transaction has age 0, and no age is negative.
        Heartbeat(name, doing, waits_for, Heartbeat.decode_detail(name, detail), max(0.0, float(seconds)))
        for name, doing, waits_for, detail, seconds in rows
    )


def _write(connection: Connection, heartbeat: Heartbeat, more: Mapping[str, Any]) -> None:
    row = {
        "doing": heartbeat.doing,
        "waits_for": heartbeat.waits_for,
        "detail": heartbeat.encode_detail(),
        "beat_at": func.now(),
        **more,
    }
    upsert = insert(processes).values(name=heartbeat.name, **row)
    connection.execute(upsert.on_conflict_do_update(index_elements=[processes.c.name], set_=row))


def _count(detail: Mapping[str, Any], key: str) -> int | None:
    value = detail.get(key)
    return value if isinstance(value, int) else None


def _sentence(detail: Mapping[str, Any], key: str) -> str | None:
    value = detail.get(key)
    return None if value is None else str(value)


class LeaseLostError(DukouError):
    """Somebody else has the lease by now: what was begun under it must not be written."""


def acquire(connection: Connection, name: str, owner: str, seconds: float) -> int | None:
    """The lease's new token; None while another owner has it.

    An owner that asks again, after a restart too, gets a greater token, and its earlier ones are void.
    """
    asked = insert(leases).values(name=name, owner=owner, token=1, until=_until(seconds))
    taken = asked.on_conflict_do_update(
        index_elements=[leases.c.name],
        set_={"owner": owner, "token": leases.c.token + 1, "until": _until(seconds)},
        where=or_(leases.c.until < _now(), leases.c.owner == owner),
    )
    token: int | None = connection.scalar(taken.returning(leases.c.token))
    return token


def renew(connection: Connection, name: str, token: int, seconds: float) -> bool:
    """Extends the lease to `seconds` from now; False where it is lost. Late is fine if nobody came."""
    kept = update(leases).where(leases.c.name == name, leases.c.token == token)
    return connection.execute(kept.values(until=_until(seconds))).rowcount == 1


def release(connection: Connection, name: str, token: int) -> bool:
    """Lets others have the lease at once; False where it was lost. The row stays: tokens only grow."""
    freed = update(leases).where(leases.c.name == name, leases.c.token == token)
    return connection.execute(freed.values(owner="", until=_now())).rowcount == 1


def check(connection: Connection, name: str, token: int) -> None:
    """Holds the lease's row until the transaction ends, so that nobody else can acquire it meanwhile.

    Raises:
        LeaseLostError: the token is not the newest.
    """
    held = (
        select(leases.c.token)
        .where(leases.c.name == name, leases.c.token == token)
        .with_for_update(read=True)
    )
    if connection.scalar(held) is None:
        raise LeaseLostError(f"the lease {name} was lost to another process")


def _now() -> ColumnElement[object]:
    """The statement's clock, not the transaction's: a row lock may have been waited for."""
    return func.clock_timestamp(type_=DateTime(timezone=True))


def _until(seconds: float) -> ColumnElement[object]:
    return _now() + cast(literal(f"{seconds} seconds"), Interval)


State = Literal["ready", "starting", "paused", "updating", "dead"]


@dataclass(frozen=True, slots=True)
class EngineRow:
    url: str
    state: State
    reason: str | None
    version: int | None  # what it serves, as verified; None: unknown
    dialect: str | None  # sglang | vllm | plain; None: it never answered
    beside: list[str]  # adapters that some sessions get instead of the version
    seen_at: datetime


def record(
    connection: Connection,
    url: str,
    state: State,
    *,
    reason: str | None,
    version: int | None,
    dialect: str | None,
    beside: Iterable[str] = (),
) -> None:
    """Writes what is known of an engine now."""
    values = {
        "state": state,
        "reason": reason,
        "version": version,
        "dialect": dialect,
        "beside": sorted(beside),
        "seen_at": func.now(),
    }
    statement = insert(engines).values(url=url, **values)
    connection.execute(statement.on_conflict_do_update(index_elements=[engines.c.url], set_=values))


def get_all(connection: Connection) -> list[EngineRow]:
    rows = connection.execute(select(engines).order_by(engines.c.url)).mappings()
    return [EngineRow(**row) for row in rows]
