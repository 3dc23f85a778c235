"""Claims on `turn_states`: who may score a turn now, and how the turn moves on.

A turn that is scorable is claimed in order; any turn may be claimed by its id, to score it once more.

A claim is a lease with a fencing token. A process whose lease was retaken meanwhile holds an old token and
can write nothing. Leases are compared with the database's clock: scorers on several machines share it.

The stages of a turn and its legal moves, as data.

    awaiting_next ─► scorable ─► scored ─► batched ─► trained
          └──────────────┴──────────┴─────────┴─► dropped (with a reason)

A side turn, or one that can never be trained, is born `dropped`. `scored` means counted: a score that is
not NULL and a turn that may be trained. Feedback scores a turn that has no next state, or not yet. Nothing
leaves `trained`; only a next state that came late, feedback and re-scoring leave `dropped`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from uuid import UUID

from sqlalchemy import Connection, Update, and_, func, or_, select, update

from dukou.errors import DukouError
from dukou.store.tables import turn_states, turns


class Stage(StrEnum):
    AWAITING_NEXT = "awaiting_next"
    SCORABLE = "scorable"
    SCORED = "scored"
    BATCHED = "batched"
    TRAINED = "trained"
    DROPPED = "dropped"


TRANSITIONS: frozenset[tuple[Stage, Stage]] = frozenset(
    {
        (Stage.AWAITING_NEXT, Stage.SCORABLE),
        (Stage.AWAITING_NEXT, Stage.DROPPED),
        (Stage.SCORABLE, Stage.SCORED),
        (Stage.SCORABLE, Stage.DROPPED),
        (Stage.SCORED, Stage.BATCHED),
        (Stage.SCORED, Stage.DROPPED),
        (Stage.BATCHED, Stage.TRAINED),
        (Stage.BATCHED, Stage.DROPPED),
        (Stage.DROPPED, Stage.AWAITING_NEXT),
        (Stage.DROPPED, Stage.SCORABLE),
        (Stage.AWAITING_NEXT, Stage.SCORED),
        (Stage.DROPPED, Stage.SCORED),
    }
)

#: Reasons of a drop that a score takes back, wherever it comes from.
REASONS_THAT_A_SCORE_UNDOES = frozenset({"no_next_state", "no_quorum", "abstained"})

#: What a dropped turn's reason means, in the words of `learner status`. A new reason adds its words here.
REASONS: dict[str, str] = {
    "side": "a side request (title, summary, tool helper): forwarded, never trained",
    "endpoint": "not a chat completion",
    "unreadable": "its records could not be read: see its error, and `python -m gateway aside`",
    "status": "the answer did not end normally",
    "no_ids": "the engine gave no token ids",
    "no_logprobs": "the engine gave no log-probabilities",
    "logprob_count_mismatch": "the engine gave another number of log-probabilities than of tokens",
    "logprob_not_finite": "the engine gave a log-probability that is not a number",
    "logprob_impossible": "the engine gave a log-probability above 0",
    "token_count_mismatch": "the reply counts other tokens than it gave ids: chunks were lost or came twice",
    "ending": "the answer ended otherwise than by stop, length or a tool call",
    "version_unknown": "it is not known which policy version answered",
    "empty_answer": "the answer has no tokens",
    "forgotten": "its text was forgotten (python -m dukou forget)",
    "retry": "the client sent the same request again",
    "sampling_unknown": "the request leaves out how to sample, and what the engine took for it is not known",
    "sampling_greedy": "sampled at temperature 0: not an on-policy sample",
    "sampling_truncated": "sampled with top-p, top-k or min-p, and batch.truncated drops those",
    "sampling_constrained": "sampled under a grammar, a forced tool call, a bias or penalties",
    "store_false": 'the client sent store: false; privacy.store_false = "ignore" would train such turns',
    "no_next_state": "the session ended before anything followed the answer",
    "no_quorum": "too few judge votes came back",
    "abstained": "the judge could not tell",
    "stale": "too many policy versions old when its batch closed",
    "not_an_ancestor": "its version was rolled back or refused",
    "too_long": "longer than the trainer's token budget",
    "out_of_vocabulary": "an id outside the model's vocabulary",
    "no_spread": "all answers of its group got the same reward: nothing to compare",
    "no_hint": "no hint says how it should have been answered, and loss.mode is opd",
    "zero_score": "scored 0, and batch.zeros drops those",
    "cut_short": "the answer ended at its token limit, and batch.cut_short drops those",
    "grad_spike": "the step's gradient was many times larger than usual: the whole batch was skipped",
    "drift": "the answers of its batch had drifted too far: the batch was skipped and learning is frozen",
    "not_finite": "the step's loss or gradient was not a number: the whole batch was skipped",
}


def check_transition(before: Stage, after: Stage) -> None:
    """Raises ValueError for a move that TRANSITIONS does not list."""
    if (before, after) not in TRANSITIONS:
        raise ValueError(f"a turn cannot go from {before} to {after}")


class ClaimLostError(DukouError):
    """The lease ran out and another process has taken the turn."""


@dataclass(frozen=True, slots=True)
class Claim:
    turn_id: UUID
    next_turn_id: UUID | None
    token: int
    attempts: int  # concluded tries that gave no score
    sampling_class: str | None = None  # how the answer was sampled; None: not known


_CLAIMED = (
    turn_states.c.turn_id,
    turn_states.c.next_turn_id,
    turn_states.c.lease_token,
    turn_states.c.attempts,
    select(turns.c.sampling_class).where(turns.c.id == turn_states.c.turn_id).scalar_subquery(),
)


def claim_scorable(connection: Connection, owner: str, seconds: float) -> Claim | None:
    """Leases the oldest free scorable turn for `seconds`; None where there is none."""
    states = turn_states.c
    free = (
        select(states.turn_id)
        .where(
            states.stage == Stage.SCORABLE, or_(states.lease_until.is_(None), states.lease_until < func.now())
        )
        .order_by(states.turn_id)
        .limit(1)
        .with_for_update(skip_locked=True)
        .cte("free")
    )
    statement = (
        update(turn_states)
        .where(states.turn_id == select(free.c.turn_id).scalar_subquery())
        .values(
            lease_owner=owner,
            lease_token=states.lease_token + 1,
            lease_until=func.now() + timedelta(seconds=seconds),
        )
        .returning(*_CLAIMED)
    )
    row = connection.execute(statement).one_or_none()
    return None if row is None else Claim(*row)


def claim_again(connection: Connection, turn_id: UUID, owner: str, seconds: float) -> Claim | None:
    """Leases a turn that was judged before, whatever became of it; None where somebody holds it, or it has
    yet to be judged for the first time."""
    states = turn_states.c
    statement = (
        update(turn_states)
        .where(
            states.turn_id == turn_id,
            states.stage.not_in((Stage.AWAITING_NEXT, Stage.SCORABLE)),
            or_(states.lease_until.is_(None), states.lease_until < func.now()),
        )
        .values(
            lease_owner=owner,
            lease_token=states.lease_token + 1,
            lease_until=func.now() + timedelta(seconds=seconds),
        )
        .returning(*_CLAIMED)
    )
    row = connection.execute(statement).one_or_none()
    return None if row is None else Claim(*row)


def release(connection: Connection, claim: Claim) -> None:
    """Gives a lease of `claim_again` back; the turn stays where it is.

    Raises:
        ClaimLostError: another process has taken the turn.
    """
    states = turn_states.c
    statement = (
        update(turn_states)
        .where(states.turn_id == claim.turn_id, states.lease_token == claim.token)
        .values(lease_owner=None, lease_until=None)
    )
    _apply(connection, statement, claim)


def rescue(connection: Connection, turn_ids: Sequence[UUID]) -> None:
    """Turns that now have a score although they could not get one from a judge: they are scored.

    Only those that may be trained and that wait, or were dropped, because a next state or votes were missing.
    """
    states = turn_states.c
    waits = states.stage.in_((Stage.AWAITING_NEXT, Stage.SCORABLE))
    unjudged = and_(states.stage == Stage.DROPPED, states.reason.in_(REASONS_THAT_A_SCORE_UNDOES))
    statement = (
        update(turn_states)
        .where(states.turn_id.in_(turn_ids), or_(waits, unjudged))
        .values(stage=Stage.SCORED, reason=None, lease_owner=None, lease_until=None, changed_at=func.now())
    )
    connection.execute(statement)


def holds(connection: Connection, claim: Claim) -> bool:
    """Whether the claim still stands; if so no other process takes the turn until this transaction ends."""
    statement = (
        select(turn_states.c.turn_id)
        .where(turn_states.c.turn_id == claim.turn_id, turn_states.c.lease_token == claim.token)
        .with_for_update(read=True)
    )
    return connection.execute(statement).one_or_none() is not None


def finish(connection: Connection, claim: Claim, after: Stage, reason: str | None) -> None:
    """Moves a claimed turn from scorable to `after` and gives the lease back.

    Raises:
        ClaimLostError: another process has taken the turn.
        ValueError: no such move.
    """
    check_transition(Stage.SCORABLE, after)
    statement = _fenced(claim).values(
        stage=after, reason=reason, lease_owner=None, lease_until=None, changed_at=func.now()
    )
    _apply(connection, statement, claim)


def put_back(
    connection: Connection, claim: Claim, reason: str | None, seconds: float, *, counted: bool
) -> None:
    """Leaves the turn scorable, to be claimed again after `seconds`; `counted` tries use up its attempts.

    Raises:
        ClaimLostError: another process has taken the turn.
    """
    statement = _fenced(claim).values(
        reason=reason,
        attempts=turn_states.c.attempts + int(counted),
        lease_owner=None,
        lease_until=func.now() + timedelta(seconds=seconds),
    )
    _apply(connection, statement, claim)


def _fenced(claim: Claim) -> Update:
    states = turn_states.c
    return update(turn_states).where(
        states.turn_id == claim.turn_id,
        states.lease_token == claim.token,
        states.stage == Stage.SCORABLE,
    )


def _apply(connection: Connection, statement: Update, claim: Claim) -> None:
    if connection.execute(statement).rowcount != 1:
        raise ClaimLostError(str(claim.turn_id))
