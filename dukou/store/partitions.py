"""Partitions by time of `turns`, `turn_states` and `contents`: made ahead, and found again.

All three are cut at the same moments. A turn's time is the first 48 bits of its id (UUIDv7), in milliseconds.
Turns of a time that has no partition (a clock that is wrong by weeks) lie in the default partitions.
A partition is made beside the table and then attached: that waits for nobody who reads or writes turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Literal
from uuid import UUID

from sqlalchemy import Connection, text

from dukou.store.sessions import first_id

Unit = Literal["day", "month"]

TABLES = ("contents", "turns", "turn_states")
DEFAULT_PERIOD = date(1970, 1, 1)  # of turns in the default partitions
MARGIN = timedelta(days=3)  # partitions are there for so long before and after now

_EPOCH_DAY = DEFAULT_PERIOD.toordinal()
_DAY_MILLISECONDS = 86_400_000

LOCK_TIMEOUT = "2s"

# A state is updated several times: room on the page keeps the lease's updates out of the indexes (HOT), and
# vacuum comes after thousands of dead rows, not after a fifth of all rows there are.
_OPTIONS = {
    "contents": "",
    # Texts and ids out of the row, also short ones: look-ups by digest read many rows a page, and no history.
    "turns": " with (toast_tuple_target = 256)",
    "turn_states": " with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, "
    "autovacuum_vacuum_threshold = 1000)",
}

# The names of the partitions of `turns`, without the default one.
_PARTITION_NAMES = text("""
    select c.relname
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
    where i.inhparent = to_regclass('turns') and c.relname ~ '_[0-9]{8}_[0-9]{8}$'
""")


@dataclass(frozen=True, slots=True, order=True)
class Period:
    """A partition's days: `start` belongs to it, `end` to the next. A column `period` holds the start."""

    start: date
    end: date


def period_of(turn_id: UUID, periods: Sequence[Period]) -> date:
    """The first day of the partition that holds the turn, or DEFAULT_PERIOD."""
    day = date.fromordinal(_EPOCH_DAY + (turn_id.int >> 80) // _DAY_MILLISECONDS)
    for period in periods:
        if period.start <= day < period.end:
            return period.start
    return DEFAULT_PERIOD


def missing_periods(now: datetime, unit: Unit, existing: Sequence[Period]) -> list[Period]:
    """The partitions that turns around now lack; after a change of unit the new begins where the old ends."""
    missing: list[Period] = []
    day = (now.astimezone(UTC) - MARGIN).date()
    last = (now.astimezone(UTC) + MARGIN).date()
    while day <= last:
        holder = next((period for period in existing if period.start <= day < period.end), None)
        if holder is None:
            holder = _unclaimed_part(_calendar_period(day, unit), day, existing)
            missing.append(holder)
        day = holder.end
    return missing


def _calendar_period(day: date, unit: Unit) -> Period:
    if unit == "day":
        return Period(day, day + timedelta(days=1))
    start = day.replace(day=1)
    return Period(start, (start + timedelta(days=32)).replace(day=1))


def _unclaimed_part(period: Period, day: date, existing: Sequence[Period]) -> Period:
    """The part of `period` around `day` that no partition has."""
    start = max([period.start, *(other.end for other in existing if other.end <= day)])
    end = min([period.end, *(other.start for other in existing if other.start > day)])
    return Period(start, end)


def periods(connection: Connection) -> list[Period]:
    """Those of the partitions that exist, oldest first; not of the default ones."""
    names = connection.scalars(_PARTITION_NAMES)
    return sorted(Period(*map(_date, each.split("_")[-2:])) for each in names)


def make_ahead(connection: Connection, now: datetime, unit: Unit) -> list[Period]:
    """Makes the partitions that turns will need soon; the ones there are, afterwards.

    Raises:
        DBAPIError: somebody holds a table for long, or the default partition has turns of the new one's time.
    """
    existing = periods(connection)
    missing = missing_periods(now, unit, existing)
    if missing:
        limit_lock_waits(connection)
    for period in missing:
        for table in TABLES:
            low, high = bounds(table, period)
            _make(connection, table, name(table, period), f"for values from ('{low}') to ('{high}')")
    return sorted([*existing, *missing])


def limit_lock_waits(connection: Connection) -> None:
    """Until the transaction ends: who waits for a table's lock makes everybody behind it wait."""
    connection.exec_driver_sql(f"set local lock_timeout = '{LOCK_TIMEOUT}'")


def name(table: str, period: Period) -> str:
    return f"{table}_{period.start:%Y%m%d}_{period.end:%Y%m%d}"


def bounds(table: str, period: Period) -> tuple[str, str]:
    """Lowest key of a period and the lowest after it, as SQL writes them."""
    if table == "contents":
        return period.start.isoformat(), period.end.isoformat()
    return str(first_id_of_day(period.start)), str(first_id_of_day(period.end))


def first_id_of_day(day: date) -> UUID:
    """The lowest id that a turn of this day can have."""
    return first_id(datetime(day.year, day.month, day.day, tzinfo=UTC))


def _make(connection: Connection, table: str, made: str, values: str) -> None:
    like = "including defaults including constraints including storage including compression"
    connection.exec_driver_sql(f"create table {made} (like {table} {like}){_OPTIONS[table]}")
    connection.exec_driver_sql(f"alter table {table} attach partition {made} {values}")


def _date(digits: str) -> date:
    return datetime.strptime(digits, "%Y%m%d").replace(tzinfo=UTC).date()
