"""What `learner status` counts: the way of all turns, as frozen rows.

How each number is counted, so that looking costs little however long the history is:

* `totals` is one index-only scan of `turn_states (stage, reason)`; only `status` asks for it.
* `snapshot` reads live stages by the same index (few rows), the newest `RECENT` turns by primary key (ids
  are UUIDv7, so the key is in order of time), and small tables; the learner asks for it every few seconds.
* recorded is the sum of `turn_states`: every row of `turns` has exactly one. Seen adds what Postgres
  refused (`set_aside`) and what, by the drainer's heartbeat, still lies in the spool.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, extract, func, select

from dukou.store import set_aside
from dukou.store.batches import EndedBatch, newest_ended
from dukou.store.processes import STOPPED, Heartbeat, heartbeats
from dukou.store.states import Stage
from dukou.store.tables import (
    batches,
    engines,
    policies,
    publications,
    samples,
    steps,
    turn_states,
    turns,
    versions,
)

RECENT = 1000
SHOWN_VERSIONS = 5
SHOWN_BATCHES = 3
STANDSTILL_SECONDS = 7.0  # without a new turn, while requests that ended lie in the spool
LIVE = (Stage.AWAITING_NEXT, Stage.SCORABLE, Stage.SCORED, Stage.BATCHED)


@dataclass(frozen=True)
class Count:
    """`turns` at one stage, for one reason; `oldest` is seconds since the first of them got there."""

    stage: Stage
    reason: str | None
    turns: int
    oldest: float | None = None


@dataclass(frozen=True)
class VersionView:
    number: int
    parent: int | None
    status: str
    reason: str | None
    age: float


@dataclass(frozen=True)
class EngineView:
    """What an engine serves, as the reconciler last verified it; `version` None: unknown."""

    url: str
    state: str
    reason: str | None
    version: int | None
    age: float


@dataclass(frozen=True)
class OpenBatch:
    """A closed batch that no step has trained yet."""

    id: int
    samples: int
    closed_because: str
    age: float


@dataclass(frozen=True)
class Snapshot:
    """What the status sentence is decided from. Ages are seconds by the database's clock."""

    live: tuple[Count, ...]
    recent: tuple[Count, ...]
    last_turn_age: float | None
    set_aside: int
    published: int | None
    live_version: int | None
    versions: tuple[VersionView, ...]
    engines: tuple[EngineView, ...]
    heartbeats: tuple[Heartbeat, ...]
    open_batch: OpenBatch | None
    publish_error: str | None
    ended: tuple[EndedBatch, ...] = ()  # the newest batches that ended, newest first

    def waiting(self, stage: Stage) -> int:
        """Turns now at a live stage."""
        return sum(count.turns for count in self.live if count.stage == stage)

    def oldest(self, stage: Stage) -> float | None:
        """Seconds since the oldest turn at a live stage got there; None where there is none."""
        return max((c.oldest for c in self.live if c.stage == stage and c.oldest is not None), default=None)

    def heartbeat(self, name: str) -> Heartbeat | None:
        """The last heartbeat of the process of this name; None where it never reported."""
        return next((found for found in self.heartbeats if found.name == name), None)

    def alive(self, name: str) -> bool:
        """The process of this name runs."""
        found = self.heartbeat(name)
        return found is not None and found.alive

    @property
    def standstill(self) -> tuple[int, float] | None:
        """Requests that ended and lie in the spool, and the seconds for which none became a turn.

        None where the drainer keeps up, or ended in order.
        """
        drainer = self.heartbeat("drainer")
        if drainer is None or drainer.doing == STOPPED:
            return None
        late, since = drainer.drainer.late, drainer.drainer.advanced_ago
        if not late or since is None or since + drainer.age < STANDSTILL_SECONDS:
            return None
        return late, since + drainer.age

    @property
    def undrained(self) -> int | None:
        """Requests in the spool that the drainer has read so far and not written; None: no drainer says."""
        drainer = self.heartbeat("drainer")
        if drainer is None or not drainer.alive:
            return None
        return drainer.drainer.undrained


def totals(connection: Connection) -> tuple[Count, ...]:
    """Every turn by stage and reason."""
    columns = turn_states.c.stage, turn_states.c.reason
    rows = connection.execute(select(*columns, func.count()).group_by(*columns))
    return tuple(Count(Stage(stage), reason, number) for stage, reason, number in rows)


def snapshot(connection: Connection, policy: str) -> Snapshot:
    """The state of things for the policy of this name. Raises SQLAlchemy's errors where Postgres fails."""
    row = connection.execute(
        select(policies.c.id, policies.c.live_version).where(policies.c.name == policy)
    ).first()
    policy_id, live_version = (row.id, row.live_version) if row else (None, None)
    return Snapshot(
        live=_live(connection),
        recent=_recent(connection),
        last_turn_age=_last_turn_age(connection),
        set_aside=set_aside.count_without_row(connection),
        published=_published(connection, policy_id),
        live_version=live_version,
        versions=_versions(connection, policy_id),
        engines=_engines(connection),
        heartbeats=heartbeats(connection),
        open_batch=_open_batch(connection, policy_id),
        publish_error=_publish_error(connection, policy_id, live_version),
        ended=() if policy_id is None else tuple(newest_ended(connection, policy_id, SHOWN_BATCHES)),
    )


def _age(column: Any) -> Any:
    return extract("epoch", func.now() - column)


def _seconds(value: Any) -> float:
    # extract() answers numeric; clocks of two machines may disagree by a little, and no age is negative.
    return max(0.0, float(value))


def _live(connection: Connection) -> tuple[Count, ...]:
    columns = turn_states.c.stage, turn_states.c.reason
    query = (
        select(*columns, func.count(), _age(func.min(turn_states.c.changed_at)))
        .where(turn_states.c.stage.in_(LIVE))
        .group_by(*columns)
    )
    return tuple(
        Count(Stage(s), reason, number, _seconds(age)) for s, reason, number, age in connection.execute(query)
    )


def _recent(connection: Connection) -> tuple[Count, ...]:
    columns = turn_states.c.stage, turn_states.c.reason
    newest = select(*columns).order_by(turn_states.c.turn_id.desc()).limit(RECENT).subquery()
    query = select(newest.c.stage, newest.c.reason, func.count()).group_by(newest.c.stage, newest.c.reason)
    return tuple(Count(Stage(stage), reason, number) for stage, reason, number in connection.execute(query))


def _last_turn_age(connection: Connection) -> float | None:
    newest = select(turn_states.c.turn_id).order_by(turn_states.c.turn_id.desc()).limit(1).scalar_subquery()
    age = connection.scalar(select(_age(turns.c.started_at)).where(turns.c.id == newest))
    return None if age is None else _seconds(age)


def _published(connection: Connection, policy_id: int | None) -> int | None:
    """Trained turns whose version, or a later one, an engine has loaded."""
    if policy_id is None:
        return None
    newest = (
        select(func.max(publications.c.version))
        .where(publications.c.policy_id == policy_id, publications.c.status == "loaded")
        .scalar_subquery()
    )
    query = (
        select(func.count())
        .select_from(samples.join(steps, samples.c.batch_id == steps.c.batch_id))
        .where(steps.c.policy_id == policy_id, steps.c.version <= newest)
    )
    return connection.scalar(query)


def _versions(connection: Connection, policy_id: int | None) -> tuple[VersionView, ...]:
    v = versions.c
    query = select(v.version, v.parent, v.status, v.reason, _age(v.created_at)).where(
        v.policy_id == policy_id
    )
    rows = connection.execute(query.order_by(v.version.desc()).limit(SHOWN_VERSIONS))
    return tuple(
        VersionView(number, parent, status, why, _seconds(age)) for number, parent, status, why, age in rows
    )


def _engines(connection: Connection) -> tuple[EngineView, ...]:
    e = engines.c
    rows = connection.execute(select(e.url, e.state, e.reason, e.version, _age(e.seen_at)).order_by(e.url))
    return tuple(
        EngineView(url, state, why, version, _seconds(age)) for url, state, why, version, age in rows
    )


def _open_batch(connection: Connection, policy_id: int | None) -> OpenBatch | None:
    size = select(func.count()).where(samples.c.batch_id == batches.c.id).scalar_subquery()
    query = (
        select(batches.c.id, size, batches.c.closed_because, _age(batches.c.created_at))
        .where(batches.c.policy_id == policy_id, batches.c.status == "closed")
        .order_by(batches.c.id)
        .limit(1)
    )
    row = connection.execute(query).first()
    return OpenBatch(row[0], row[1], row[2], _seconds(row[3])) if row else None


def _publish_error(connection: Connection, policy_id: int | None, version: int | None) -> str | None:
    """What went wrong at the last attempt to load the live version, where the last attempt failed."""
    p = publications.c
    query = select(p.status, p.error).where(p.policy_id == policy_id, p.version == version)
    row = connection.execute(query.order_by(p.id.desc()).limit(1)).first()
    return (row.error or "no reason given") if row and row.status == "failed" else None
