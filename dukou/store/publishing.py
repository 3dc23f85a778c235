"""What a person or the learner may do with a policy's versions: publish, try, roll back, pin.

Each moves pointers in one transaction and nothing else: the reconciler makes the engines follow. The command
line and the admin API are two doors to these functions.

Publications: each attempt to bring a version to an engine, and what came of it.

Sessions that stay on the version they began with, for a while.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import Connection, Interval, cast, func, literal, select, update

from dukou.errors import DukouError
from dukou.store import batches, versions
from dukou.store import policies as policy_rows
from dukou.store.policies import Policy
from dukou.store.tables import policies, publications, sessions, turns
from dukou.store.tables import versions as version_rows
from dukou.store.versions import Version


class PublishingError(DukouError):
    """What was asked cannot be done; the message says what to do instead."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A version that a share of the sessions gets beside the live one."""

    version: int
    share: float  # of the sessions, above 0 and below 1
    since: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Pointers:
    """Where a policy's traffic goes."""

    live: int
    pinned: bool  # nothing automatic moves `live`
    trial: Trial | None


def find(connection: Connection, name: str) -> Policy:
    """Raises PublishingError before the policy's first turn or step."""
    policy = policy_rows.get(connection, name)
    if policy is None:
        raise PublishingError(f"there is no policy {name!r} yet: it begins with its first turn")
    return policy


def pointers(connection: Connection, policy_id: int) -> Pointers:
    table = policies.c
    columns = (
        table.live_version,
        table.pinned_at,
        table.trial_version,
        table.trial_share,
        table.trial_at,
    )
    row = connection.execute(select(*columns).where(table.id == policy_id)).one()
    trial = None if row.trial_version is None else Trial(row.trial_version, row.trial_share, row.trial_at)
    return Pointers(row.live_version, row.pinned_at is not None, trial)


def pointers_of(connection: Connection, name: str) -> Pointers | None:
    """Those of the policy of this name; None before its first turn or step."""
    policy = policy_rows.get(connection, name)
    return None if policy is None else pointers(connection, policy.id)


def newest_unpublished(connection: Connection, policy_id: int) -> int | None:
    """The newest version that follows from the live one and was never live; None where there is none."""
    live = pointers(connection, policy_id).live
    head = batches.head(connection, policy_id, live)
    return None if head == live else head


def publish(connection: Connection, policy_id: int, version: int | None = None) -> int:
    """Makes a version live, the newest unpublished one where none is named; returns it. A trial ends.

    Raises PublishingError, UnknownVersionError, RefusedVersionError.
    """
    chosen = newest_unpublished(connection, policy_id) if version is None else version
    if chosen is None:
        raise PublishingError("the newest version is live already")
    versions.set_live(connection, policy_id, chosen)
    end_trial(connection, policy_id)
    return chosen


def rollback(
    connection: Connection, policy_id: int, to: int | None = None, because: str | None = None
) -> int:
    """Makes an earlier version live again and returns it: `to`, or the nearest ancestor that was ever live.

    Training goes on from there; what was trained on the branch that is left behind stays behind.
    Raises PublishingError, UnknownVersionError, RefusedVersionError.
    """
    live = versions.lock(connection, policy_id)
    chosen = before(connection, policy_id, live) if to is None else to
    if chosen is None:
        raise PublishingError(f"version {live} has no ancestor to go back to")
    if chosen == live:
        raise PublishingError(f"version {live} is live already")
    versions.set_live(connection, policy_id, chosen, because)
    end_trial(connection, policy_id)
    return chosen


def before(connection: Connection, policy_id: int, version: int) -> int | None:
    """Where a rollback from a version goes: its nearest ancestor that was live and is not refused."""
    for ancestor in versions.ancestors(connection, policy_id, version)[1:]:
        row = versions.get(connection, policy_id, ancestor)
        if row.status != "refused" and (row.live_at is not None or ancestor == 0):
            return ancestor
    return None


def try_out(connection: Connection, policy_id: int, version: int | None, share: float) -> int:
    """Gives a version to a share of the sessions, beside the live one; returns it.

    Raises PublishingError, UnknownVersionError, RefusedVersionError.
    """
    live = versions.lock(connection, policy_id)
    chosen = newest_unpublished(connection, policy_id) if version is None else version
    if chosen is None or chosen == live:
        raise PublishingError("there is no version beside the live one to try")
    row = versions.get(connection, policy_id, chosen)
    if row.form != "adapter":
        raise PublishingError(f"version {chosen} is full weights: only adapters are served side by side")
    if row.status == "refused":
        raise versions.RefusedVersionError(f"version {chosen} was refused: {row.reason}")
    if not 0 < share < 1:
        raise PublishingError("the share of the sessions must lie between 0 and 1")
    trial = {"trial_version": chosen, "trial_share": share, "trial_at": func.now()}
    connection.execute(update(policies).where(policies.c.id == policy_id).values(**trial))
    return chosen


def end_trial(connection: Connection, policy_id: int) -> None:
    none = {"trial_version": None, "trial_share": None, "trial_at": None}
    connection.execute(update(policies).where(policies.c.id == policy_id).values(**none))


def pin(connection: Connection, policy_id: int, version: int | None = None) -> int:
    """Keeps a version live (the live one where none is named) until `unpin`: nothing automatic replaces it.

    Raises UnknownVersionError, RefusedVersionError.
    """
    live = versions.lock(connection, policy_id)
    if version is not None and version != live:
        versions.set_live(connection, policy_id, version, "pinned")
        end_trial(connection, policy_id)
    pinned = update(policies).where(policies.c.id == policy_id, policies.c.pinned_at.is_(None))
    connection.execute(pinned.values(pinned_at=func.now()))
    return live if version is None else version


def unpin(connection: Connection, policy_id: int) -> None:
    connection.execute(update(policies).where(policies.c.id == policy_id).values(pinned_at=None))


def tree(connection: Connection, policy_id: int, newest: int = 50) -> list[Version]:
    """The newest versions, newest first; `parent` makes them a tree."""
    return versions.newest(connection, policy_id, newest)


def in_use(connection: Connection, policy_id: int) -> set[int]:
    """Versions whose folders must stay: live, on trial, to go back to, to train on from, or on an engine."""
    state = pointers(connection, policy_id)
    kept = {state.live, batches.head(connection, policy_id, state.live)}
    kept |= {version for version in (before(connection, policy_id, state.live),) if version is not None}
    kept |= {state.trial.version} if state.trial else set()
    return kept | versions.served(connection, policy_id)


def as_json(version: Version, state: Pointers) -> dict[str, object]:
    """A version for machines, without its probe."""
    trial = state.trial
    return {
        "version": version.version,
        "parent": version.parent,
        "form": version.form,
        "status": version.status,
        "reason": version.reason,
        "batch_id": version.batch_id,
        "path": version.path,
        "created_at": version.created_at.isoformat(),
        "live_at": version.live_at.isoformat() if version.live_at else None,
        "pinned": state.pinned and version.version == state.live,
        "trial_share": trial.share if trial and trial.version == version.version else None,
    }


@dataclass(frozen=True, slots=True)
class Publication:
    policy_id: int
    version: int
    engine: str  # URL
    status: Literal["loaded", "failed"]
    error: str | None
    reported_version: str | None  # what the engine itself said afterwards
    probe: dict[str, Any] | None  # {"mean_abs_diff", "max_abs_diff"} in nats, or {"missing": why}
    seconds: float


def insert(connection: Connection, publication: Publication) -> None:
    connection.execute(
        publications.insert().values(
            policy_id=publication.policy_id,
            version=publication.version,
            engine=publication.engine,
            status=publication.status,
            error=publication.error,
            reported_version=publication.reported_version,
            probe=publication.probe,
            seconds=publication.seconds,
        )
    )


#: Sources of an id that only the drainer knows: a worker cannot tell such a session when a request comes.
_FOUND_LATER = ("lineage", "new")


def begun_with(connection: Connection, policy_id: int, live_version: int, seconds: float) -> dict[str, int]:
    """Session (`session_key`) → the version of its first turn, for sessions younger than `seconds`.

    Only versions that the live one follows from: no session stays on what was rolled back or refused.
    """
    kept = set(versions.ancestors(connection, policy_id, live_version)[1:])
    if not kept:
        return {}
    first = (
        select(turns.c.policy_version_max.label("version"))
        .where(
            turns.c.tenant == sessions.c.tenant,
            turns.c.session_id == sessions.c.id,
            turns.c.policy_id == policy_id,
        )
        .order_by(turns.c.started_at)
        .limit(1)
        .lateral("first")
    )
    query = (
        select(sessions.c.tenant, sessions.c.id, first.c.version)
        .select_from(sessions)
        .join(first, literal(True))
        .join(version_rows, version_rows.c.version == first.c.version)
        .where(
            version_rows.c.policy_id == policy_id,
            version_rows.c.status != "refused",
            first.c.version.in_(kept),
            sessions.c.created_at > func.now() - cast(literal(f"{seconds} seconds"), Interval),
            sessions.c.done_at.is_(None),
            sessions.c.source.not_in(_FOUND_LATER),
        )
    )
    rows = connection.execute(query)
    return {session_key(tenant, session_id): version for tenant, session_id, version in rows}


def session_key(tenant: str, session_id: str) -> str:
    """How a session is written in the routes file."""
    return f"{tenant}/{session_id}"
