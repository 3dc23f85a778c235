"""Closes batches: scored turns in, one batch with its samples out, in one transaction.

Decides whether learning is frozen. Nothing is stored for it: the newest batches say so by how they ended.

A batch that ended as `drift`, or so many in a row that were skipped, freeze their policy until the live
pointer moves (a rollback) or somebody changes `[guard]`: both are decisions of a person, and both are seen
here without a switch to forget.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from uuid import UUID

from sqlalchemy import Connection, Engine

from dukou.settings.learning import BatchSettings, GuardSettings
from dukou.settings.model import Config
from dukou.store import batches, policies, versions
from dukou.store.batches import Backlog, EndedBatch, NewBatch, Selection, StepSettings
from dukou.store.policies import Policy
from learner.base_model import vocabulary
from learner.batch.compose import assemble
from learner.batch.rules import BatchDraft, Limits

#: Skipped batches in a row after which a person should look.
SKIPPED_IN_A_ROW = 3


def why_frozen(connection: Connection, policy: Policy, guard: GuardSettings) -> str | None:
    """Why nothing of this policy is trained now; None where learning goes on."""
    newest = batches.newest_ended(connection, policy.id, SKIPPED_IN_A_ROW)
    return why_frozen_after(newest, policy.live_version, guard)


def why_frozen_after(newest: Sequence[EndedBatch], live_version: int, guard: GuardSettings) -> str | None:
    """Why nothing is trained after these batches, newest first; None where learning goes on. Pure."""
    here = [b for b in newest if b.live_version == live_version and b.guard == guard]
    if not here or here[0] != newest[0]:
        return None
    if here[0].reason == "drift":
        return f"learning is frozen: {here[0].detail}"
    if len(here) == SKIPPED_IN_A_ROW and all(b.reason in ("not_finite", "grad_spike") for b in here):
        return f"learning is frozen: the last {SKIPPED_IN_A_ROW} batches were skipped ({here[0].detail})"
    return None


@dataclass(frozen=True, slots=True)
class ClosedBatch:
    """A batch waits for its step."""

    batch_id: int


@dataclass(frozen=True, slots=True)
class NoBatch:
    """No batch to train: `current` scored turns of `needed`; the oldest has waited so many seconds."""

    current: int
    needed: int
    oldest_seconds: float | None
    because: str


def close_batch(engine: Engine, config: Config, now: datetime) -> ClosedBatch | NoBatch:
    """The batch to train next: the one that is closed already, or a new one where there is enough for it.

    A policy has one closed batch at a time, so nothing ages behind another. Turns that break a rule are
    dropped with the reason; that stands even where too few are left. Raises FileNotFoundError where the base
    model's folder is not there.
    """
    needed = config.batch.rollout_batch_size
    with engine.begin() as connection:
        policy = policies.get(connection, config.policy.name)
        if policy is None:
            return NoBatch(0, needed, None, f"no turn has come for the policy {config.policy.name!r} yet")
        backlog = batches.backlog(connection, policy.id)
        waiting = _no_batch(backlog, config.batch, now)
        unfinished = batches.open_batch(connection, policy.id)
        if unfinished is not None:
            return _unfinished(unfinished, waiting, dry_run=config.trainer.dry_run)
        frozen = why_frozen(connection, policy, config.guard)
        if frozen is not None:
            return NoBatch(backlog.turns, needed, waiting.oldest_seconds, frozen)
        overdue = _overdue(backlog, config.batch, now)
        if not (overdue or _may_be_full(backlog, config.batch)):
            return waiting
        batch_id = _close(connection, policy.id, config, overdue=overdue)
        return waiting if batch_id is None else ClosedBatch(batch_id)


def _unfinished(batch_id: int, waiting: NoBatch, *, dry_run: bool) -> ClosedBatch | NoBatch:
    if not dry_run:
        return ClosedBatch(batch_id)
    because = f"trainer.dry_run is on: batch {batch_id} is closed and is not trained"
    return NoBatch(waiting.current, waiting.needed, waiting.oldest_seconds, because)


def _may_be_full(backlog: Backlog, settings: BatchSettings) -> bool:
    """Whether it is worth looking; with a limit on tokens fewer turns may do."""
    enough = settings.min_size if settings.max_batch_tokens else settings.rollout_batch_size
    return backlog.turns >= enough


def _overdue(backlog: Backlog, settings: BatchSettings, now: datetime) -> bool:
    waited = _seconds(backlog, now)
    return (
        waited is not None and waited >= settings.rollout_timeout_sec and backlog.turns >= settings.min_size
    )


def _seconds(backlog: Backlog, now: datetime) -> float | None:
    return None if backlog.oldest is None else max(0.0, (now - backlog.oldest).total_seconds())


def _no_batch(backlog: Backlog, settings: BatchSettings, now: datetime) -> NoBatch:
    needed, waited = settings.rollout_batch_size, _seconds(backlog, now)
    if waited is None:
        because = "no scored turn is left"
    elif backlog.turns < settings.min_size and waited >= settings.rollout_timeout_sec:
        because = f"a partial batch needs {settings.min_size}"
    else:
        timeout = f"{settings.rollout_timeout_sec:g}s"
        because = f"a full batch needs {needed}; a partial one closes {timeout} after its oldest"
    return NoBatch(backlog.turns, needed, waited, because)


def _close(connection: Connection, policy_id: int, config: Config, *, overdue: bool) -> int | None:
    """The new batch's id; None where the rules left too few turns, or another process was first."""
    batches.lock_policy(connection, policy_id)
    policy = policies.get(connection, config.policy.name)
    if policy is None or batches.open_batch(connection, policy_id) is not None:
        return None
    draft = BatchDraft(config.batch, _limits(connection, policy, config))
    _fill(connection, policy.id, draft)
    if not draft.full and not (overdue and len(draft.taken) >= config.batch.min_size):
        return None
    hints = config.loss.mode != "rl"
    baseline = batches.baseline(connection, policy.id)
    batch = assemble(draft.taken, draft.limits, config.advantage, baseline, hints=hints)
    batches.drop(connection, batch.dropped)
    if not batch.samples:
        return None
    return batches.insert(
        connection,
        NewBatch(
            policy_id=policy.id,
            live_version=policy.live_version,
            closed_because="full" if draft.full else "timeout",
            settings=StepSettings(config.batch, config.advantage, config.loss, config.guard, config.trainer),
            baseline=batch.baseline,
            samples=batch.samples,
        ),
    )


def _limits(connection: Connection, policy: Policy, config: Config) -> Limits:
    line = versions.ancestors(connection, policy.id, policy.live_version)
    return Limits(
        depth={version: distance for distance, version in enumerate(line)},
        max_staleness=config.batch.max_staleness,
        max_tokens=config.trainer.max_tokens,
        vocabulary=vocabulary(Path(policy.base_model)),
        needs_hint=config.loss.mode == "opd",
        train_cut_short=config.batch.cut_short == "train",
        train_zeros=config.batch.zeros != "drop",
        train_truncated=config.batch.truncated == "train",
    )


def _fill(connection: Connection, policy_id: int, draft: BatchDraft) -> None:
    """Offers late turns, oldest first, for their small share, then what the newest versions answered: where
    more turns come than are trained, those that wait do not make each other stale."""
    for late in (True, False):
        _offer(connection, policy_id, draft, late=late)


def _offer(connection: Connection, policy_id: int, draft: BatchDraft, *, late: bool) -> None:
    """Offers scored turns, locked, until there are no more or the draft is full; drops those it refuses."""
    seen: set[UUID] = set()
    while not draft.full:
        selection = Selection(
            fresh=[v for v, depth in draft.limits.depth.items() if depth <= draft.limits.max_staleness],
            late=late,
            without_turns=seen,
            without_tenants=[name for (name,) in draft.saturated("tenant")],
            without_users=draft.saturated("user"),
            without_sessions=draft.saturated("session"),
        )
        found = batches.take_scored(connection, policy_id, draft.settings.rollout_batch_size, selection)
        if not found:
            return
        verdicts = {turn.turn_id: draft.offer(turn) for turn in found}
        batches.drop(connection, {turn: v.reason for turn, v in verdicts.items() if v.reason is not None})
        seen |= set(verdicts)
