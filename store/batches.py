"""Batches and their samples: what is scored, what closes, what a step reads.

Everything runs in the caller's transaction. `lock_policy` serialises those that close batches of one policy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeVar
from uuid import UUID

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError
from sqlalchemy import Connection, func, select, update

from store import whole
from store.config_base import Section
from store.config_learning import (
    AdvantageSettings,
    BatchSettings,
    GuardSettings,
    LossSettings,
    TrainerSettings,
)
from store.stages import REASONS, Stage, check_transition
from store.tables import batches, hints, policies, samples, turn_states, turns

S = TypeVar("S", bound=Section)


@dataclass(frozen=True, slots=True)
class Backlog:
    """Scored turns that are in no batch: how many, and since when the oldest waits (None: there is none)."""

    turns: int
    oldest: datetime | None


@dataclass(frozen=True, slots=True)
class StepSettings:
    """`batches.settings`: the settings that a batch was closed with; its step uses them, as a replay does."""

    batch: BatchSettings
    advantage: AdvantageSettings
    loss: LossSettings
    guard: GuardSettings
    trainer: TrainerSettings

    def encode(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name).model_dump(mode="json") for each in fields(self)}

    @classmethod
    def decode(cls, stored: Mapping[str, Any]) -> "StepSettings":
        """Settings that this release does not know are ignored; those that are missing have their defaults.

        Raises pydantic.ValidationError for a value that this release refuses.
        """
        return cls(
            batch=_section(BatchSettings, stored.get("batch")),
            advantage=_section(AdvantageSettings, stored.get("advantage")),
            loss=_section(LossSettings, stored.get("loss")),
            guard=_section(GuardSettings, stored.get("guard")),
            trainer=_section(TrainerSettings, stored.get("trainer")),
        )


class SessionSum(NamedTuple):
    """What earlier batches say of one session and task class: a sum of rewards, and its weight."""

    session: str  # learner.batch.baseline.session_key; "" for sums that are nearly forgotten
    task: str
    weight: float
    total: float


@dataclass(frozen=True, slots=True)
class BaselineState:
    """`batches.baseline`: the running baseline's state after a batch. Empty before the first."""

    sessions: tuple[SessionSum, ...] = ()
    residuals: tuple[float, float] = (0.0, 0.0)  # weight of all rewards, sum of their squared residuals

    def encode(self) -> dict[str, Any]:
        return {"sessions": [list(each) for each in self.sessions], "residuals": list(self.residuals)}

    @classmethod
    def decode(cls, stored: Mapping[str, Any]) -> "BaselineState":
        weight, total = stored.get("residuals", (0.0, 0.0))
        return cls(tuple(SessionSum(*each) for each in stored.get("sessions", ())), (weight, total))


@dataclass(frozen=True, slots=True)
class NewSample:
    """A turn's numbers in its batch."""

    turn_id: UUID
    reward: float
    baseline: float
    advantage: float
    staleness: int
    task: str
    hint_id: int | None = None


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch to write, with its samples in order."""

    policy_id: int
    live_version: int
    closed_because: Literal["full", "timeout"]
    settings: StepSettings
    baseline: BaselineState
    samples: Sequence[NewSample]


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


def baseline(connection: Connection, policy_id: int) -> BaselineState:
    """The running baseline's state after the newest batch; empty before the first."""
    query = (
        select(batches.c.baseline)
        .where(batches.c.policy_id == policy_id)
        .order_by(batches.c.id.desc())
        .limit(1)
    )
    return BaselineState.decode(connection.scalar(query) or {})


@dataclass(frozen=True, slots=True)
class EndedBatch:
    """How a batch ended, and the guard that it was held against (None: this release refuses its values)."""

    live_version: int
    guard: GuardSettings | None
    reason: str | None
    detail: str | None


def newest_ended(connection: Connection, policy_id: int, count: int) -> list[EndedBatch]:
    """The newest batches that ended, newest first."""
    query = (
        select(batches.c.live_version, batches.c.settings, batches.c.reason, batches.c.detail)
        .where(batches.c.policy_id == policy_id, batches.c.status != "closed")
        .order_by(batches.c.id.desc())
        .limit(count)
    )
    return [
        EndedBatch(live_version, _guard(settings), reason, detail)
        for live_version, settings, reason, detail in connection.execute(query)
    ]


def _guard(settings: Mapping[str, Any]) -> GuardSettings | None:
    try:
        return _section(GuardSettings, settings.get("guard"))
    except ValidationError:
        return None


def _section(kind: type[S], stored: object) -> S:
    known = stored if isinstance(stored, Mapping) else {}
    return kind.model_validate({name: known[name] for name in kind.model_fields if name in known})


def insert(connection: Connection, batch: NewBatch) -> int:
    """Writes a closed batch and its samples, in order; moves their turns to `batched`; returns its id."""
    statement = batches.insert().values(
        policy_id=batch.policy_id,
        live_version=batch.live_version,
        closed_because=batch.closed_because,
        settings=batch.settings.encode(),
        baseline=batch.baseline.encode(),
    )
    batch_id: int = connection.execute(statement.returning(batches.c.id)).scalar_one()
    rows = [
        {
            "turn_id": sample.turn_id,
            "batch_id": batch_id,
            "position": position,
            "reward": sample.reward,
            "baseline": sample.baseline,
            "advantage": sample.advantage,
            "staleness": sample.staleness,
            "task": sample.task,
            "hint_id": sample.hint_id,
        }
        for position, sample in enumerate(batch.samples)
    ]
    connection.execute(samples.insert(), rows)
    move(connection, [sample.turn_id for sample in batch.samples], Stage.SCORED, Stage.BATCHED)
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
    check_transition(before, after)
    statement = (
        update(turn_states)
        .where(turn_states.c.turn_id.in_(turn_ids), turn_states.c.stage == before)
        .values(stage=after, reason=reason, changed_at=func.now(), lease_owner=None, lease_until=None)
    )
    moved = connection.execute(statement).rowcount
    if moved != len(turn_ids):
        raise ValueError(f"{moved} of {len(turn_ids)} turns were {before}")


@dataclass(frozen=True, slots=True)
class StoredBatch:
    id: int
    policy_id: int
    live_version: int
    status: Literal["closed", "trained", "skipped"]


def get(connection: Connection, batch_id: int) -> StoredBatch:
    """Raises LookupError where there is no such batch."""
    found = find(connection, batch_id)
    if found is None:
        raise LookupError(f"there is no batch {batch_id}")
    return found


def find(connection: Connection, batch_id: int) -> StoredBatch | None:
    columns = batches.c.id, batches.c.policy_id, batches.c.live_version, batches.c.status
    row = connection.execute(select(*columns).where(batches.c.id == batch_id)).one_or_none()
    return None if row is None else StoredBatch(*row)


def made_with(connection: Connection, batch_id: int) -> tuple[StepSettings, BaselineState]:
    """The settings that a batch was closed with, and the running baseline after it.

    Raises sqlalchemy.exc.NoResultFound where there is no such batch, pydantic.ValidationError for settings
    that this release refuses.
    """
    query = select(batches.c.settings, batches.c.baseline).where(batches.c.id == batch_id)
    settings, baseline = connection.execute(query).one()
    return StepSettings.decode(settings), BaselineState.decode(baseline)


@dataclass(frozen=True, slots=True)
class SampleRow:
    """A sample of a batch and what its turn was sampled as; with P prompt ids and T answer ids."""

    turn_id: UUID
    reward: float
    advantage: float
    staleness: int
    prompt_ids: npt.NDArray[np.int32]  # (P,)
    response_ids: npt.NDArray[np.int32]  # (T,)
    response_logprobs: npt.NDArray[np.float32] | None  # (T,); None: none were recorded
    trained_tokens: npt.NDArray[np.int32] | None  # spans (store/spans.py); None: the whole answer
    temperature: float
    finish_reason: str | None
    hint_prompt_ids: npt.NDArray[np.int32] | None  # of the prompt with the hint in it; None: no teacher


def members(connection: Connection, batch_id: int) -> list[SampleRow]:
    """A batch's samples, in order."""
    query = (
        select(
            samples.c.turn_id,
            samples.c.reward,
            samples.c.advantage,
            samples.c.staleness,
            whole.prompt_ids(turns),
            turns.c.response_ids,
            turns.c.response_logprobs,
            turns.c.trained_tokens,
            turns.c.temperature,
            turns.c.finish_reason,
            hints.c.prompt_ids,
        )
        .join(turns, turns.c.id == samples.c.turn_id)
        .outerjoin(hints, hints.c.id == samples.c.hint_id)
        .where(samples.c.batch_id == batch_id)
        .order_by(samples.c.position)
    )
    return [SampleRow(*row) for row in connection.execute(query)]


def conclude(
    connection: Connection,
    batch_id: int,
    status: Literal["trained", "skipped"],
    turn_ids: Sequence[UUID],
    reason: str | None = None,
    detail: str | None = None,
) -> None:
    """Ends a closed batch: its turns are `trained`, or `dropped` with the reason why it was skipped.

    Raises ValueError where the batch was not closed: another process ended it first.
    """
    statement = update(batches).where(batches.c.id == batch_id, batches.c.status == "closed")
    if connection.execute(statement.values(status=status, reason=reason, detail=detail)).rowcount != 1:
        raise ValueError(f"batch {batch_id} is not waiting for a step")
    after = Stage.TRAINED if status == "trained" else Stage.DROPPED
    move(connection, turn_ids, Stage.BATCHED, after, reason)
