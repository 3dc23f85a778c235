"""Closes batches: scored turns in, one batch with its samples out, in one transaction."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import Connection, Engine

from learner.batch.baseline import task_class
from learner.batch.compose import Candidate, Limits, assemble, why_dropped
from learner.train.base import vocabulary
from store import batches, policies, versions
from store.batches import Backlog, NewSample
from store.config_model import Batch, Config
from store.policies import Policy


@dataclass(frozen=True, slots=True)
class Closed:
    """A batch waits for its step."""

    batch_id: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """No batch to train: `current` scored turns of `needed`; the oldest has waited so many seconds."""

    current: int
    needed: int
    oldest_seconds: float | None
    because: str


def close_batch(engine: Engine, config: Config, now: datetime) -> Closed | Waiting:
    """The batch to train next: the one that is closed already, or a new one where there is enough for it.

    A policy has one closed batch at a time, so nothing ages behind another. Turns that break a rule are
    dropped with the reason; that stands even where too few are left. Raises FileNotFoundError where the base
    model's folder is not there.
    """
    needed = config.batch.rollout_batch_size
    with engine.begin() as connection:
        policy = policies.get(connection, config.policy.name)
        if policy is None:
            return Waiting(0, needed, None, f"no turn has come for the policy {config.policy.name!r} yet")
        backlog = batches.backlog(connection, policy.id)
        waiting = _waiting(backlog, config.batch, now)
        unfinished = batches.open_batch(connection, policy.id)
        if unfinished is not None:
            return _unfinished(unfinished, waiting, dry_run=config.trainer.dry_run)
        because = _may_close(backlog, config.batch, now)
        if because is None:
            return waiting
        batch_id = _close(connection, policy.id, config, because)
        return waiting if batch_id is None else Closed(batch_id)


def _unfinished(batch_id: int, waiting: Waiting, *, dry_run: bool) -> Closed | Waiting:
    if not dry_run:
        return Closed(batch_id)
    because = f"trainer.dry_run is on: batch {batch_id} is closed and is not trained"
    return Waiting(waiting.current, waiting.needed, waiting.oldest_seconds, because)


def _may_close(backlog: Backlog, settings: Batch, now: datetime) -> Literal["full", "timeout"] | None:
    if backlog.turns >= settings.rollout_batch_size:
        return "full"
    waited = _seconds(backlog, now)
    if waited is not None and waited >= settings.rollout_timeout_sec and backlog.turns >= settings.min_size:
        return "timeout"
    return None


def _seconds(backlog: Backlog, now: datetime) -> float | None:
    return None if backlog.oldest is None else max(0.0, (now - backlog.oldest).total_seconds())


def _waiting(backlog: Backlog, settings: Batch, now: datetime) -> Waiting:
    needed, waited = settings.rollout_batch_size, _seconds(backlog, now)
    if waited is None:
        because = "no scored turn is left"
    elif backlog.turns < settings.min_size and waited >= settings.rollout_timeout_sec:
        because = f"a partial batch needs {settings.min_size}"
    else:
        timeout = f"{settings.rollout_timeout_sec:g}s"
        because = f"a full batch needs {needed}; a partial one closes {timeout} after its oldest"
    return Waiting(backlog.turns, needed, waited, because)


def _close(
    connection: Connection, policy_id: int, config: Config, because: Literal["full", "timeout"]
) -> int | None:
    """The new batch's id; None where the rules left too few turns, or another process was first."""
    batches.lock_policy(connection, policy_id)
    policy = policies.get(connection, config.policy.name)
    if policy is None or batches.open_batch(connection, policy_id) is not None:
        return None
    limits = _limits(connection, policy, config)
    turns = _take(connection, policy, limits, config.batch.rollout_batch_size)
    if len(turns) < config.batch.rollout_batch_size and (
        because == "full" or len(turns) < config.batch.min_size
    ):
        return None
    batch = assemble(turns, limits, config.advantage, batches.baseline(connection, policy.id))
    batches.drop(connection, batch.dropped)
    if not batch.members:
        return None
    return batches.insert(
        connection,
        policy.id,
        policy.live_version,
        because,
        config.model_dump(mode="json", include={"batch", "advantage", "loss", "trainer"}),
        batch.baseline,
        [NewSample(m.turn_id, m.reward, m.baseline, m.advantage, m.staleness) for m in batch.members],
    )


def _limits(connection: Connection, policy: Policy, config: Config) -> Limits:
    line = versions.ancestors(connection, policy.id, policy.live_version)
    return Limits(
        depth={version: distance for distance, version in enumerate(line)},
        max_staleness=config.batch.max_staleness,
        max_tokens=config.trainer.max_tokens,
        vocabulary=vocabulary(Path(policy.base_model)),
    )


def _take(connection: Connection, policy: Policy, limits: Limits, size: int) -> list[Candidate]:
    """Up to `size` turns that pass the rules, locked; those that do not are dropped on the way."""
    taken: list[Candidate] = []
    seen: set[UUID] = set()
    while len(taken) < size:
        rows = batches.take_scored(connection, policy.id, size - len(taken), seen)
        if not rows:
            break
        candidates = [_candidate(row) for row in rows]
        reasons = {turn.turn_id: why_dropped(turn, limits) for turn in candidates}
        batches.drop(
            connection, {turn_id: reason for turn_id, reason in reasons.items() if reason is not None}
        )
        taken += [turn for turn in candidates if reasons[turn.turn_id] is None]
        seen |= set(reasons)
    return taken


def _candidate(row: Any) -> Candidate:
    return Candidate(
        turn_id=row.turn_id,
        tenant=row.tenant,
        session_id=row.session_id,
        prompt_hash=row.prompt_hash,
        task=task_class(row.messages, row.tools),
        version_min=row.policy_version_min,
        version_max=row.policy_version_max,
        tokens=row.prompt_tokens + row.answer_tokens,
        answer_tokens=row.answer_tokens,
        lowest_id=row.lowest_id,
        highest_id=row.highest_id,
        reward=row.reward,
    )
