"""Turns that are old enough: whole partitions are dropped, and what belongs to their turns goes with them.

`samples`, `calls` and `spending` stay: which turns made which version, and what was paid, hold no text.
Nobody waits: a partition is dropped where its tables' locks come within two seconds, else at the next look.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, text

from dukou.store import partitions
from dukou.store.partitions import Period

#: Tables with a `turn_id` whose rows go with the turn.
OF_TURN = ("votes", "scores", "hints", "feedback", "demonstrations", "orphans")

# Whether a batch that waits for its step has turns from before :end.
_HAS_BATCHED = text("""
    select exists (
        select
        from samples s
        join batches b on b.id = s.batch_id
        where b.status = 'closed' and s.turn_id < :end
    )
""")
# Makes samples forget their hints, which are deleted next.
_RELEASE_HINTS = text("""
    update samples set hint_id = null where turn_id < :end and hint_id is not null
""")
_DELETE_OF_TURN = tuple(text(f"delete from {table} where turn_id < :end") for table in OF_TURN)
_DELETE_OF_DEFAULTS = (
    text("delete from turn_states_default where turn_id < :end"),
    text("delete from turns_default where id < :end"),
)


def expired(periods: Sequence[Period], now: datetime, keep_days: int) -> list[Period]:
    """The partitions of which every turn is older than `keep_days`; 0 keeps all."""
    if keep_days == 0:
        return []
    oldest = (now.astimezone(UTC) - timedelta(days=keep_days)).date()
    return [period for period in periods if period.end <= oldest]


def drop(connection: Connection, period: Period) -> bool:
    """Drops one partition, and everything older that lies in the default ones. False: a batch that waits for
    its step has turns of it.

    Raises:
        DBAPIError: somebody reads the table for long.
    """
    partitions.limit_lock_waits(connection)
    end = {"end": partitions.first_id_of_day(period.end)}
    if connection.scalar(_HAS_BATCHED, end):
        return False
    for statement in (_RELEASE_HINTS, *_DELETE_OF_TURN):
        connection.execute(statement, end)
    for table in partitions.TABLES:
        connection.exec_driver_sql(f"drop table {partitions.name(table, period)}")
    for statement in _DELETE_OF_DEFAULTS:
        connection.execute(statement, end)
    return True
