"""Which partitions there must be, and which are old enough to go."""

from datetime import UTC, date, datetime, timedelta
from uuid import UUID

from dukou.store.partitions import (
    DEFAULT_PERIOD,
    Period,
    first_id_of_day,
    missing_periods,
    period_of,
)
from dukou.store.retention import expired

MAY, JUNE = Period(date(2026, 5, 1), date(2026, 6, 1)), Period(date(2026, 6, 1), date(2026, 7, 1))


def at(day: date, hour: int = 12) -> datetime:
    return datetime(day.year, day.month, day.day, hour, tzinfo=UTC)


def test_a_month_is_there_before_its_first_turn() -> None:
    assert missing_periods(at(date(2026, 5, 15)), "month", []) == [MAY]
    assert missing_periods(at(date(2026, 5, 28)), "month", [MAY]) == []
    assert missing_periods(at(date(2026, 5, 29)), "month", [MAY]) == [JUNE]


def test_days_reach_three_days_back_and_ahead() -> None:
    spans = missing_periods(at(date(2026, 5, 15)), "day", [])
    assert [span.start.day for span in spans] == [12, 13, 14, 15, 16, 17, 18]
    assert all(span.end - span.start == timedelta(days=1) for span in spans)


def test_a_change_of_unit_takes_what_is_free() -> None:
    days = [Period(date(2026, 5, day), date(2026, 5, day + 1)) for day in range(12, 19)]
    after = missing_periods(at(date(2026, 5, 17)), "month", days)
    assert after == [Period(date(2026, 5, 19), date(2026, 6, 1))]
    back = missing_periods(at(date(2026, 5, 15)), "day", [MAY])
    assert back == []


def test_a_turn_belongs_to_the_partition_of_the_time_in_its_id() -> None:
    last_of_may = UUID(int=first_id_of_day(JUNE.start).int - 1)
    assert period_of(last_of_may, [MAY, JUNE]) == MAY.start
    assert period_of(first_id_of_day(JUNE.start), [MAY, JUNE]) == JUNE.start
    assert period_of(first_id_of_day(JUNE.end), [MAY, JUNE]) == DEFAULT_PERIOD


def test_a_partition_goes_when_its_youngest_turn_is_old_enough() -> None:
    now = at(date(2026, 7, 31), hour=0)
    assert expired([MAY, JUNE], now, keep_days=30) == [MAY, JUNE]
    assert expired([MAY, JUNE], now, keep_days=31) == [MAY]
    assert expired([MAY, JUNE], now, keep_days=0) == []
