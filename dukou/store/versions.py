"""Policy versions: a tree of checkpoints that engines can load, and the live pointer into it.

Numbers only grow within a policy, whatever is rolled back, refused or deleted in between. Everything here
runs in the caller's transaction; whatever moves the pointer locks the policy's row first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import Connection, func, literal, select, update
from sqlalchemy.engine import RowMapping

from dukou.errors import DukouError
from dukou.store.tables import engines, policies, versions

Form = Literal["full", "adapter"]
Status = Literal["written", "live", "retired", "refused"]


class UnknownVersionError(DukouError):
    """This policy has no such version."""


class RefusedVersionError(DukouError):
    """A refused version cannot become live."""


class BadProbeError(DukouError):
    """A version's probe is malformed, or no engine can be sent it."""


@dataclass(frozen=True, slots=True)
class ProbePrompt:
    """A fixed prompt and the trainer's log-probabilities of it."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # of ids[1:], at temperature 1, in nats


@dataclass(frozen=True, slots=True)
class Probe:
    """`versions.probe`: what the trainer computed with a version's weights; engines must compute the same."""

    prompts: tuple[ProbePrompt, ...]

    def encode(self) -> dict[str, Any]:
        return {"prompts": [{"ids": list(p.ids), "logprobs": list(p.logprobs)} for p in self.prompts]}

    @classmethod
    def decode(cls, stored: Mapping[str, Any]) -> "Probe":
        """Raises BadProbeError where it is malformed."""
        try:
            return cls(tuple(ProbePrompt(tuple(e["ids"]), tuple(e["logprobs"])) for e in stored["prompts"]))
        except (KeyError, TypeError) as error:
            raise BadProbeError(f"its probe is malformed: {error!r}") from error


@dataclass(frozen=True, slots=True)
class NewVersion:
    policy_id: int
    version: int
    parent: int | None  # None only for version 0
    batch_id: int | None
    path: str  # a model folder or an adapter folder
    form: Form
    probe: Probe | None


@dataclass(frozen=True, slots=True)
class Version:
    policy_id: int
    version: int
    parent: int | None
    batch_id: int | None
    path: str
    form: Form
    probe: dict[str, Any] | None  # encoded: a malformed one is the fault of this version alone
    status: Status
    reason: str | None
    created_at: datetime
    live_at: datetime | None

    @classmethod
    def from_row(cls, row: RowMapping) -> "Version":
        return cls(**row)


def next_version(connection: Connection, policy_id: int) -> int:
    """The number of the next version: above every number that this policy ever had.

    The policy's row stays locked until the transaction ends, so that two callers never get the same one.
    """
    live = lock(connection, policy_id)
    highest = connection.scalar(select(func.max(versions.c.version)).where(versions.c.policy_id == policy_id))
    return max(live, highest if highest is not None else -1) + 1


def insert(connection: Connection, new: NewVersion) -> None:
    """Writes a version with status `written`: durable, known, and not live yet."""
    connection.execute(
        versions.insert().values(
            policy_id=new.policy_id,
            version=new.version,
            parent=new.parent,
            batch_id=new.batch_id,
            path=new.path,
            form=new.form,
            probe=None if new.probe is None else new.probe.encode(),
            status="written",
        )
    )


def get(connection: Connection, policy_id: int, version: int) -> Version:
    """Raises UnknownVersionError."""
    query = select(versions).where(versions.c.policy_id == policy_id, versions.c.version == version)
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise UnknownVersionError(f"policy {policy_id} has no version {version}")
    return Version.from_row(row)


def live(connection: Connection, policy: str) -> Version | None:
    """The version that the live pointer of the policy of this name shows; None before there is a policy."""
    query = (
        select(versions)
        .join(policies, policies.c.id == versions.c.policy_id)
        .where(policies.c.name == policy, versions.c.version == policies.c.live_version)
    )
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else Version.from_row(row)


def newest(connection: Connection, policy_id: int, count: int) -> list[Version]:
    """The versions with the greatest numbers, greatest first."""
    query = select(versions).where(versions.c.policy_id == policy_id)
    rows = connection.execute(query.order_by(versions.c.version.desc()).limit(count)).mappings()
    return [Version.from_row(row) for row in rows]


def served(connection: Connection, policy_id: int) -> set[int]:
    """The versions that some engine was last seen with."""
    known = select(versions.c.version).where(
        versions.c.policy_id == policy_id, versions.c.version.in_(select(engines.c.version))
    )
    return set(connection.scalars(known))


def set_live(connection: Connection, policy_id: int, version: int, because: str | None = None) -> None:
    """Moves the live pointer, forward or back; the version that was live is retired, with the reason.

    Raises:
        UnknownVersionError: there is no such version.
        RefusedVersionError: it was refused.
    """
    before = lock(connection, policy_id)
    target = get(connection, policy_id, version)
    if target.status == "refused":
        raise RefusedVersionError(f"version {version} was refused: {target.reason}")
    if before != version:
        word = "superseded" if version > before else "rolled back"
        cause = f"{word}: version {version} became live"
        _mark(connection, policy_id, before, "retired", f"{cause} ({because})" if because else cause)
    _mark(connection, policy_id, version, "live", None)
    connection.execute(update(policies).where(policies.c.id == policy_id).values(live_version=version))


def refuse(connection: Connection, policy_id: int, version: int, reason: str) -> int:
    """Refuses a version and returns the live one: where it was live, the newest ancestor that is not refused.

    Version 0 is what everything falls back to and is never refused.

    Raises:
        RefusedVersionError: version 0 was meant.
    """
    if version == 0:
        raise RefusedVersionError(f"version 0 is the base model and cannot be refused ({reason})")
    current = lock(connection, policy_id)
    _mark(connection, policy_id, version, "refused", reason)
    ends = update(policies).where(policies.c.id == policy_id, policies.c.trial_version == version)
    connection.execute(ends.values(trial_version=None, trial_share=None, trial_at=None))
    if current != version:
        return current
    fallback = next(
        ancestor
        for ancestor in ancestors(connection, policy_id, version)
        if get(connection, policy_id, ancestor).status != "refused"
    )
    set_live(connection, policy_id, fallback)
    return fallback


def ancestors(connection: Connection, policy_id: int, version: int) -> list[int]:
    """The way back to version 0, this version first: the index of a version in it is its staleness."""
    here = versions.alias("here")
    above = versions.alias("above")
    line = (
        select(here.c.version, here.c.parent, literal(0).label("distance"))
        .where(here.c.policy_id == policy_id, here.c.version == version)
        .cte("line", recursive=True)
    )
    line = line.union_all(
        select(above.c.version, above.c.parent, line.c.distance + 1).where(
            above.c.policy_id == policy_id, above.c.version == line.c.parent
        )
    )
    return list(connection.scalars(select(line.c.version).order_by(line.c.distance)))


def lock(connection: Connection, policy_id: int) -> int:
    """Locks the policy's row and returns its live version."""
    query = select(policies.c.live_version).where(policies.c.id == policy_id).with_for_update()
    live_version: int | None = connection.scalar(query)
    if live_version is None:
        raise UnknownVersionError(f"there is no policy {policy_id}")
    return live_version


def _mark(connection: Connection, policy_id: int, version: int, status: Status, reason: str | None) -> None:
    values: dict[str, Any] = {"status": status, "reason": reason}
    if status == "live":
        values["live_at"] = func.now()
    query = update(versions).where(versions.c.policy_id == policy_id, versions.c.version == version)
    if status == "retired":
        query = query.where(versions.c.status != "refused")  # a refusal stands
    connection.execute(query.values(**values))
