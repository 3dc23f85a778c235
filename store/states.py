"""Claims on `turn_states`: who may score a turn now, and how the turn moves on.

A claim is a lease with a fencing token. Whoever comes back after its lease was retaken holds an old token
and can write nothing. Leases are compared with the database's clock: scorers on several machines share it.
"""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from sqlalchemy import Connection, Update, func, or_, select, update

from store.stages import Stage, check_move
from store.tables import turn_states


class LeaseLostError(RuntimeError):
    """The lease ran out and another process has taken the turn."""


@dataclass(frozen=True, slots=True)
class Claim:
    turn_id: UUID
    next_turn_id: UUID | None
    token: int
    attempts: int  # concluded tries that gave no score


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
        .returning(states.turn_id, states.next_turn_id, states.lease_token, states.attempts)
    )
    row = connection.execute(statement).one_or_none()
    return None if row is None else Claim(row[0], row[1], row[2], row[3])


def hold(connection: Connection, claim: Claim) -> None:
    """Keeps anybody from retaking the turn until this transaction ends.

    Raises:
        LeaseLostError: it was retaken already.
    """
    statement = (
        select(turn_states.c.turn_id)
        .where(turn_states.c.turn_id == claim.turn_id, turn_states.c.lease_token == claim.token)
        .with_for_update(read=True)
    )
    if connection.execute(statement).one_or_none() is None:
        raise LeaseLostError(str(claim.turn_id))


def finish(connection: Connection, claim: Claim, after: Stage, reason: str | None) -> None:
    """Moves a claimed turn from scorable to `after` and gives the lease back.

    Raises:
        LeaseLostError: another process has taken the turn.
        ValueError: no such move.
    """
    check_move(Stage.SCORABLE, after)
    statement = _fenced(claim).values(
        stage=after, reason=reason, lease_owner=None, lease_until=None, changed_at=func.now()
    )
    _apply(connection, statement, claim)


def put_back(
    connection: Connection, claim: Claim, reason: str | None, seconds: float, *, counted: bool
) -> None:
    """Leaves the turn scorable, to be claimed again after `seconds`; `counted` tries use up its attempts.

    Raises:
        LeaseLostError: another process has taken the turn.
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
        raise LeaseLostError(str(claim.turn_id))
