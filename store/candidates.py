"""Scored turns that ask to be in a batch. Everything runs in the caller's transaction."""

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, false, func, select, true, tuple_

from store import whole
from store.batches import AnyRow
from store.scores import counting
from store.stages import Stage
from store.tables import hints, samples, turn_states, turns


def take_scored(
    connection: Connection,
    policy_id: int,
    limit: int,
    *,
    fresh: Sequence[int],
    late: bool,
    besides: Iterable[UUID] = (),
    tenants: Iterable[str] = (),
    users: Iterable[tuple[str, ...]] = (),
    sessions: Iterable[tuple[str, ...]] = (),
) -> Sequence[AnyRow]:
    """Locks up to `limit` scored turns: those that a version in `fresh` answered, the newest version first,
    or the others (`late`), oldest first. Without those that others hold, those in `besides`, and those of
    the tenants, users and sessions named (the latter two as (tenant, name)).

    Columns: what `learner.batch.rules.Candidate` needs; `reward` is the score that counts.
    """
    person = func.coalesce(turns.c.user_name, turns.c.key_id, "")
    newest = _newest_hint()
    query = (
        select(
            turns.c.id.label("turn_id"),
            turns.c.tenant,
            person.label("person"),
            turns.c.session_id,
            turns.c.prompt_hash,
            whole.messages(turns).label("messages"),
            whole.tools(turns).label("tools"),
            turns.c.finish_reason,
            turns.c.sampling_class,
            turns.c.temperature,
            turns.c.policy_version_min,
            turns.c.policy_version_max,
            func.coalesce(turns.c.prompt_tokens, 0).label("prompt_tokens"),
            func.coalesce(func.cardinality(turns.c.response_ids), 0).label("answer_tokens"),
            turns.c.lowest_id,
            turns.c.highest_id,
            counting().label("reward"),
            _session_trained().label("session_trained"),
            newest.c.id.label("hint_id"),
            func.coalesce(newest.c.tokens, 0).label("hint_tokens"),
        )
        .join(turn_states, turn_states.c.turn_id == turns.c.id)
        .outerjoin(newest, true())
        .where(
            turn_states.c.stage == Stage.SCORED,
            turn_states.c.policy_id == policy_id,
            func.coalesce(turns.c.policy_version_min.in_(fresh), false()) != late,
            turn_states.c.turn_id.not_in(list(besides)),
            turns.c.tenant.not_in(list(tenants)),
            tuple_(turns.c.tenant, person).not_in(list(users)),
            tuple_(turns.c.tenant, turns.c.session_id).not_in(list(sessions)),
        )
        .order_by(*(() if late else (turns.c.policy_version_min.desc(),)), turn_states.c.turn_id)
        .limit(limit)
        .with_for_update(skip_locked=True, of=turn_states)
    )
    return connection.execute(query).all()


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
