"""Scored turns that ask to be in a batch. Everything runs in the caller's transaction."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Select, false, func, select, true, tuple_

from store import whole
from store.scores import counting
from store.stages import Stage
from store.tables import hints, samples, turn_states, turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A scored turn that asks to be in a batch."""

    turn_id: UUID
    tenant: str
    user: str  # the request's `user`, else the key's digest, else ""
    session_id: str
    prompt_hash: bytes | None  # equal for regenerations of one prompt
    task: str  # store.whole.task_class
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
            whole.messages(turns).label("messages"),
            whole.tools(turns).label("tools"),
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
    task = whole.task_class(columns.pop("messages"), columns.pop("tools"))
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
