"""Batches and their samples: what is scored, what closes, what a step reads.

Everything runs in the caller's transaction. `lock_policy` serialises those that close batches of one policy.

Scored turns that ask to be in a batch. Everything runs in the caller's transaction.

Optimizer steps: which batch made which version, and the checkpoint to go on from.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError
from sqlalchemy import ColumnElement, Connection, Select, false, func, select, true, tuple_, update

from dukou.settings.learning import (
    AdvantageSettings,
    BatchSettings,
    GuardSettings,
    LossSettings,
    TrainerSettings,
)
from dukou.settings.serving import Section
from dukou.store import contents
from dukou.store.scores import counting
from dukou.store.states import REASONS, Stage, check_transition
from dukou.store.tables import batches, hints, policies, samples, steps, turn_states, turns, versions

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

    session: str  # learner.batch.advantage.session_key; "" for sums that are nearly forgotten
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
            raise ValueError(f"dukou/store/states.py has no words for the reason {reason!r}")
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
    trained_tokens: npt.NDArray[np.int32] | None  # spans (dukou/store/layout.py); None: the whole answer
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
            contents.prompt_ids(turns),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A scored turn that asks to be in a batch."""

    turn_id: UUID
    tenant: str
    user: str  # the request's `user`, else the key's digest, else ""
    session_id: str
    prompt_hash: bytes | None  # equal for regenerations of one prompt
    task: str  # dukou.store.contents.task_class
    version_min: int | None
    version_max: int | None
    tokens: int  # prompt plus answer
    answer_tokens: int
    lowest_id: int | None  # of all token ids
    highest_id: int | None
    reward: float | None  # the score that counts; None: every score is NULL
    cut_short: bool  # the answer ended at its token limit
    session_trained: bool  # a turn of its session is in an earlier batch
    sampling_class: str | None = "free"  # how it was sampled; None: not known
    temperature: float | None = 1.0  # what it was sampled at; None: not known
    hint_id: int | None = None  # newest hint
    hint_tokens: int = 0  # of the prompt with the hint in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The scored turns of a policy that a look is for: those that a version in `fresh` answered, or with
    `late` all others; without the turns and without the tenants, users and sessions that are named (the
    latter two as (tenant, name))."""

    fresh: Sequence[int]
    late: bool
    without_turns: Collection[UUID] = ()
    without_tenants: Collection[str] = ()
    without_users: Collection[tuple[str, ...]] = ()
    without_sessions: Collection[tuple[str, ...]] = ()


def take_scored(connection: Connection, policy_id: int, limit: int, selection: Selection) -> list[Candidate]:
    """Locks up to `limit` scored turns: fresh ones by version, the newest first; late ones oldest first.
    Turns that other transactions have locked are left out."""
    states = turn_states.c
    fresh = func.coalesce(turns.c.policy_version_min.in_(selection.fresh), false())
    query = (
        _candidates()
        .where(
            states.stage == Stage.SCORED,
            states.policy_id == policy_id,
            fresh != selection.late,
            states.turn_id.not_in(list(selection.without_turns)),
            turns.c.tenant.not_in(list(selection.without_tenants)),
            tuple_(turns.c.tenant, _user()).not_in(list(selection.without_users)),
            tuple_(turns.c.tenant, turns.c.session_id).not_in(list(selection.without_sessions)),
        )
        .order_by(*(() if selection.late else (turns.c.policy_version_min.desc(),)), states.turn_id)
        .limit(limit)
        .with_for_update(skip_locked=True, of=turn_states)
    )
    return [_candidate(dict(row)) for row in connection.execute(query).mappings()]


def _candidates() -> Select[*tuple[Any, ...]]:
    """Every scored turn with a column per field of Candidate; messages and tools in the place of `task`."""
    newest = _newest_hint()
    answer_tokens = func.coalesce(func.cardinality(turns.c.response_ids), 0)
    return (
        select(
            turns.c.id.label("turn_id"),
            turns.c.tenant,
            _user().label("user"),
            turns.c.session_id,
            turns.c.prompt_hash,
            contents.messages(turns).label("messages"),
            contents.tools(turns).label("tools"),
            turns.c.policy_version_min.label("version_min"),
            turns.c.policy_version_max.label("version_max"),
            (func.coalesce(turns.c.prompt_tokens, 0) + answer_tokens).label("tokens"),
            answer_tokens.label("answer_tokens"),
            turns.c.lowest_id,
            turns.c.highest_id,
            counting().label("reward"),
            func.coalesce(turns.c.finish_reason == "length", false()).label("cut_short"),
            _session_trained().label("session_trained"),
            turns.c.sampling_class,
            turns.c.temperature,
            newest.c.id.label("hint_id"),
            func.coalesce(newest.c.tokens, 0).label("hint_tokens"),
        )
        .join(turn_states, turn_states.c.turn_id == turns.c.id)
        .outerjoin(newest, true())
    )


def _candidate(columns: dict[str, Any]) -> Candidate:
    task = contents.task_class(columns.pop("messages"), columns.pop("tools"))
    return Candidate(task=task, **columns)


def _user() -> ColumnElement[str]:
    return func.coalesce(turns.c.user_name, turns.c.key_id, "")


def _newest_hint() -> Any:
    return (
        select(hints.c.id, func.cardinality(hints.c.prompt_ids).label("tokens"))
        .where(hints.c.turn_id == turns.c.id)
        .order_by(hints.c.id.desc())
        .limit(1)
        .lateral("newest_hint")
    )


def _session_trained() -> Any:
    earlier = turns.alias("earlier")
    return (
        select(samples.c.turn_id)
        .join(earlier, earlier.c.id == samples.c.turn_id)
        .where(earlier.c.tenant == turns.c.tenant, earlier.c.session_id == turns.c.session_id)
        .exists()
    )


#: `steps.metrics`: what a step measured, by name (docs/training.md); None where there was nothing to measure.
Metrics: TypeAlias = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class NewStep:
    batch_id: int
    policy_id: int
    number: int  # optimizer steps of this policy, from 1
    version: int
    checkpoint: str
    metrics: Metrics
    seconds: float


def insert_step(connection: Connection, step: NewStep) -> None:
    connection.execute(
        steps.insert().values(
            batch_id=step.batch_id,
            policy_id=step.policy_id,
            number=step.number,
            version=step.version,
            checkpoint=step.checkpoint,
            metrics=step.metrics,
            seconds=step.seconds,
        )
    )


def exists(connection: Connection, batch_id: int) -> bool:
    return connection.scalar(select(func.count()).where(steps.c.batch_id == batch_id)) == 1


def metrics(connection: Connection, policy_id: int, count: int, *, newest: bool) -> list[Metrics]:
    """The metrics of a policy's first or newest steps, oldest first."""
    number = steps.c.number
    query = (
        select(steps.c.metrics)
        .where(steps.c.policy_id == policy_id)
        .order_by(number.desc() if newest else number)
        .limit(count)
    )
    found = list(connection.scalars(query))
    return found[::-1] if newest else found


def measured(connection: Connection, policy_id: int, version: int) -> Metrics:
    """The metrics of the step that made a version; empty where no step did."""
    query = select(steps.c.metrics).where(steps.c.policy_id == policy_id, steps.c.version == version)
    found: Metrics | None = connection.scalar(query)
    return found or {}


def next_number(connection: Connection, policy_id: int) -> int:
    """One more than the newest step's number."""
    newest = connection.scalar(select(func.max(steps.c.number)).where(steps.c.policy_id == policy_id))
    return (newest or 0) + 1


def number_of(connection: Connection, policy_id: int, version: int) -> int | None:
    """The number of the step that made a version; None for the base model."""
    query = select(steps.c.number).where(steps.c.policy_id == policy_id, steps.c.version == version)
    found: int | None = connection.scalar(query)
    return found


def head(connection: Connection, policy_id: int, live_version: int) -> int:
    """The version that training goes on from.

    The live one; or, where steps were made and not published yet, the newest that follows from it through
    versions that never were live. What was live once and is not any more was rolled back, and stays behind.
    """
    table = versions.c
    query = select(table.version, table.parent).where(
        table.policy_id == policy_id,
        table.version > live_version,
        table.status == "written",
        table.live_at.is_(None),
    )
    newest = live_version
    line = {live_version}
    for version, parent in connection.execute(query.order_by(table.version)):
        if parent in line:
            line.add(version)
            newest = version
    return newest
