"""Batches and their samples: what is scored, what closes, what a step reads.

Everything runs in the caller's transaction. `lock_policy` serialises those that close batches of one policy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias
from uuid import UUID

from sqlalchemy import Connection, Row, func, select, update

from store import whole
from store.stages import REASONS, Stage, check_move
from store.tables import batches, hints, policies, samples, turn_states, turns

AnyRow: TypeAlias = Row[*tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Backlog:
    """Scored turns that are in no batch: how many, and since when the oldest waits (None: there is none)."""

    turns: int
    oldest: datetime | None


@dataclass(frozen=True, slots=True)
class NewSample:
    turn_id: UUID
    reward: float
    baseline: float
    advantage: float
    staleness: int
    task: str
    hint_id: int | None = None


def lock_policy(connection: Connection, policy_id: int) -> None:
    """Locks the policy's row until the transaction ends: one process at a time closes its batches."""
    connection.execute(select(policies.c.id).where(policies.c.id == policy_id).with_for_update())


def backlog(connection: Connection, policy_id: int) -> Backlog:
    query = select(func.count(), func.min(turn_states.c.changed_at)).where(
        turn_states.c.stage == Stage.SCORED, turn_states.c.policy_id == policy_id
    )
    count, oldest = connection.execute(query).one()
    return Backlog(count, oldest)


def open_batch(connection: Connection, policy_id: int) -> int | None:
    """The batch that is closed and not trained yet; there is at most one."""
    query = select(func.min(batches.c.id)).where(
        batches.c.policy_id == policy_id, batches.c.status == "closed"
    )
    found: int | None = connection.scalar(query)
    return found


def baseline(connection: Connection, policy_id: int) -> dict[str, Any] | None:
    """The running baseline's state after the newest batch; None before the first."""
    query = (
        select(batches.c.baseline)
        .where(batches.c.policy_id == policy_id)
        .order_by(batches.c.id.desc())
        .limit(1)
    )
    state: dict[str, Any] | None = connection.scalar(query)
    return state


@dataclass(frozen=True, slots=True)
class Ended:
    """How a batch ended."""

    live_version: int
    settings: dict[str, Any]
    reason: str | None
    detail: str | None


def newest_ended(connection: Connection, policy_id: int, count: int) -> list[Ended]:
    """The newest batches that ended, newest first."""
    query = (
        select(batches.c.live_version, batches.c.settings, batches.c.reason, batches.c.detail)
        .where(batches.c.policy_id == policy_id, batches.c.status != "closed")
        .order_by(batches.c.id.desc())
        .limit(count)
    )
    return [Ended(*row) for row in connection.execute(query)]


def insert(
    connection: Connection,
    policy_id: int,
    live_version: int,
    closed_because: Literal["full", "timeout"],
    settings: Mapping[str, Any],
    baseline: Mapping[str, Any],
    members: Sequence[NewSample],
) -> int:
    """Writes a closed batch and its samples, in order; moves their turns to `batched`; returns its id."""
    statement = batches.insert().values(
        policy_id=policy_id,
        live_version=live_version,
        closed_because=closed_because,
        settings=dict(settings),
        baseline=dict(baseline),
    )
    batch_id: int = connection.execute(statement.returning(batches.c.id)).scalar_one()
    rows = [
        {
            "turn_id": member.turn_id,
            "batch_id": batch_id,
            "position": position,
            "reward": member.reward,
            "baseline": member.baseline,
            "advantage": member.advantage,
            "staleness": member.staleness,
            "task": member.task,
            "hint_id": member.hint_id,
        }
        for position, member in enumerate(members)
    ]
    connection.execute(samples.insert(), rows)
    move(connection, [member.turn_id for member in members], Stage.SCORED, Stage.BATCHED)
    return batch_id


def drop(connection: Connection, reasons: Mapping[UUID, str]) -> None:
    """Moves scored turns to `dropped`, each with its reason. Raises ValueError for an unknown reason."""
    for reason in sorted(set(reasons.values())):
        if reason not in REASONS:
            raise ValueError(f"store/stages.py has no words for the reason {reason!r}")
        dropped = [turn_id for turn_id, why in reasons.items() if why == reason]
        move(connection, dropped, Stage.SCORED, Stage.DROPPED, reason)


def move(
    connection: Connection, turn_ids: Sequence[UUID], before: Stage, after: Stage, reason: str | None = None
) -> None:
    """Moves turns from one stage to another. Raises ValueError for an illegal move, or where a turn was not
    at `before`: then nothing of the transaction may stay."""
    check_move(before, after)
    statement = (
        update(turn_states)
        .where(turn_states.c.turn_id.in_(turn_ids), turn_states.c.stage == before)
        .values(stage=after, reason=reason, changed_at=func.now(), lease_owner=None, lease_until=None)
    )
    moved = connection.execute(statement).rowcount
    if moved != len(turn_ids):
        raise ValueError(f"{moved} of {len(turn_ids)} turns were {before}")


@dataclass(frozen=True, slots=True)
class Closed:
    """A batch as a step needs it."""

    id: int
    policy_id: int
    live_version: int
    settings: dict[str, Any]
    baseline: dict[str, Any]
    status: Literal["closed", "trained", "skipped"]


def get(connection: Connection, batch_id: int) -> Closed:
    """Raises LookupError where there is no such batch."""
    found = find(connection, batch_id)
    if found is None:
        raise LookupError(f"there is no batch {batch_id}")
    return found


def find(connection: Connection, batch_id: int) -> Closed | None:
    query = select(
        batches.c.id,
        batches.c.policy_id,
        batches.c.live_version,
        batches.c.settings,
        batches.c.baseline,
        batches.c.status,
    ).where(batches.c.id == batch_id)
    row = connection.execute(query).one_or_none()
    return None if row is None else Closed(*row)


def members(connection: Connection, batch_id: int) -> Sequence[AnyRow]:
    """A batch's samples in order, with what their turns were sampled as, and the ids of the
    prompt with the hint in it where a teacher takes part."""
    query = (
        select(
            samples.c.turn_id,
            samples.c.reward,
            samples.c.advantage,
            samples.c.staleness,
            whole.prompt_ids(turns).label("prompt_ids"),
            turns.c.response_ids,
            turns.c.response_logprobs,
            turns.c.trained_tokens,
            turns.c.temperature,
            turns.c.finish_reason,
            hints.c.prompt_ids.label("hint_prompt_ids"),
        )
        .join(turns, turns.c.id == samples.c.turn_id)
        .outerjoin(hints, hints.c.id == samples.c.hint_id)
        .where(samples.c.batch_id == batch_id)
        .order_by(samples.c.position)
    )
    return connection.execute(query).all()


def conclude(
    connection: Connection,
    batch_id: int,
    status: Literal["trained", "skipped"],
    turn_ids: Sequence[UUID],
    reason: str | None = None,
    detail: str | None = None,
) -> None:
    """Ends a closed batch: its turns are `trained`, or `dropped` with the reason why it was skipped.

    Raises ValueError where the batch was not closed: whoever ended it first has it.
    """
    statement = update(batches).where(batches.c.id == batch_id, batches.c.status == "closed")
    if connection.execute(statement.values(status=status, reason=reason, detail=detail)).rowcount != 1:
        raise ValueError(f"batch {batch_id} is not waiting for a step")
    after = Stage.TRAINED if status == "trained" else Stage.DROPPED
    move(connection, turn_ids, Stage.BATCHED, after, reason)
