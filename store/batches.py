"""Batches and their samples: what is scored, what closes, what a step reads.

Everything runs in the caller's transaction. `lock_policy` serialises those that close batches of one policy.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias
from uuid import UUID

from sqlalchemy import Connection, Row, func, select, update

from store.stages import REASONS, Stage, check_move
from store.tables import batches, policies, samples, scores, turn_states, turns

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


def take_scored(
    connection: Connection, policy_id: int, limit: int, besides: Iterable[UUID]
) -> Sequence[AnyRow]:
    """Locks up to `limit` scored turns, oldest first, those that others hold and `besides` left out.

    Columns: what `learner.batch.compose.Candidate` needs; `reward` is the latest score that is not NULL.
    """
    lowest, highest = _id_range(turns.c.prompt_ids, turns.c.response_ids)
    reward = (
        select(scores.c.value)
        .where(scores.c.turn_id == turns.c.id, scores.c.value.is_not(None))
        .order_by(scores.c.created_at.desc(), scores.c.judge)
        .limit(1)
        .scalar_subquery()
    )
    query = (
        select(
            turns.c.id.label("turn_id"),
            turns.c.tenant,
            turns.c.session_id,
            turns.c.prompt_hash,
            turns.c.messages,
            turns.c.tools,
            turns.c.policy_version_min,
            turns.c.policy_version_max,
            func.coalesce(func.cardinality(turns.c.prompt_ids), 0).label("prompt_tokens"),
            func.coalesce(func.cardinality(turns.c.response_ids), 0).label("answer_tokens"),
            lowest.label("lowest_id"),
            highest.label("highest_id"),
            reward.label("reward"),
        )
        .join(turn_states, turn_states.c.turn_id == turns.c.id)
        .where(
            turn_states.c.stage == Stage.SCORED,
            turn_states.c.policy_id == policy_id,
            turn_states.c.turn_id.not_in(list(besides)),
        )
        .order_by(turn_states.c.turn_id)
        .limit(limit)
        .with_for_update(skip_locked=True, of=turn_states)
    )
    return connection.execute(query).all()


def _id_range(*arrays: Any) -> tuple[Any, Any]:
    """Least and greatest id of several arrays, read in the database: the arrays themselves stay there."""
    lowest, highest = [], []
    for array in arrays:
        token = func.unnest(array).column_valued("token")
        lowest.append(select(func.min(token)).scalar_subquery())
        highest.append(select(func.max(token)).scalar_subquery())
    return func.least(*lowest), func.greatest(*highest)


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
    """A batch's samples in order, with the ids and log-probabilities of their turns."""
    query = (
        select(
            samples.c.turn_id,
            samples.c.reward,
            samples.c.advantage,
            samples.c.staleness,
            turns.c.prompt_ids,
            turns.c.response_ids,
            turns.c.response_logprobs,
            func.coalesce(turns.c.temperature, 1.0).label("temperature"),
            turns.c.finish_reason,
        )
        .join(turns, turns.c.id == samples.c.turn_id)
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
) -> None:
    """Ends a closed batch: its turns are `trained`, or `dropped` with the reason why it was skipped.

    Raises ValueError where the batch was not closed: whoever ended it first has it.
    """
    statement = update(batches).where(batches.c.id == batch_id, batches.c.status == "closed")
    if connection.execute(statement.values(status=status, reason=reason)).rowcount != 1:
        raise ValueError(f"batch {batch_id} is not waiting for a step")
    after = Stage.TRAINED if status == "trained" else Stage.DROPPED
    move(connection, turn_ids, Stage.BATCHED, after, reason)
