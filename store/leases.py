"""Leases: who alone may do a thing for a while, with a token that grows with every acquisition.

A lease may be lost while its holder is asleep. So what the holder writes goes through `check` in the same
transaction, which fails for a token that is no longer the newest: a late write never lands.
"""

from sqlalchemy import Connection, DateTime, Interval, cast, func, literal, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.elements import ColumnElement

from store.errors import DukouError
from store.tables import leases


class LeaseLostError(DukouError):
    """Somebody else has the lease by now: what was begun under it must not be written."""


def acquire(connection: Connection, name: str, owner: str, seconds: float) -> int | None:
    """The lease's new token; None while another owner has it.

    An owner that asks again, after a restart too, gets a greater token, and its earlier ones are void.
    """
    asked = insert(leases).values(name=name, owner=owner, token=1, until=_until(seconds))
    taken = asked.on_conflict_do_update(
        index_elements=[leases.c.name],
        set_={"owner": owner, "token": leases.c.token + 1, "until": _until(seconds)},
        where=or_(leases.c.until < _now(), leases.c.owner == owner),
    )
    token: int | None = connection.scalar(taken.returning(leases.c.token))
    return token


def renew(connection: Connection, name: str, token: int, seconds: float) -> bool:
    """Extends the lease to `seconds` from now; False where it is lost. Late is fine if nobody came."""
    kept = update(leases).where(leases.c.name == name, leases.c.token == token)
    return connection.execute(kept.values(until=_until(seconds))).rowcount == 1


def release(connection: Connection, name: str, token: int) -> bool:
    """Lets others have the lease at once; False where it was lost. The row stays: tokens only grow."""
    freed = update(leases).where(leases.c.name == name, leases.c.token == token)
    return connection.execute(freed.values(owner="", until=_now())).rowcount == 1


def check(connection: Connection, name: str, token: int) -> None:
    """Holds the lease's row until the transaction ends, so that nobody else can acquire it meanwhile.

    Raises:
        LeaseLostError: the token is not the newest.
    """
    held = (
        select(leases.c.token)
        .where(leases.c.name == name, leases.c.token == token)
        .with_for_update(read=True)
    )
    if connection.scalar(held) is None:
        raise LeaseLostError(f"the lease {name} was lost to another process")


def _now() -> ColumnElement[object]:
    """The statement's clock, not the transaction's: a row lock may have been waited for."""
    return func.clock_timestamp(type_=DateTime(timezone=True))


def _until(seconds: float) -> ColumnElement[object]:
    return _now() + cast(literal(f"{seconds} seconds"), Interval)
