"""What a claim costs when `turn_states` has 10 million rows, beside 100 thousand.

The rows are synthetic and narrow: a year of turns in monthly partitions, nearly all of them trained or
dropped, 2,000 scorable at the end. A claim is the scorer's: claim the oldest free turn, then finish it, each
in its own transaction. Both sizes are measured in turns within one run, and the planner's choice is shown.
"""

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

from sqlalchemy import Engine, create_engine, text

from bench.postgres import scratch
from dukou.store import database, partitions, states
from dukou.store.states import Stage

SMALL, LARGE = 100_000, 10_000_000
START, DAYS = date(2026, 1, 1), 360
SCORABLE = 2000

# Ids as the gateway makes them: milliseconds, version 7, and something that differs.
_FILL = text("""
insert into turn_states (turn_id, tenant, policy_id, stage, reason)
select cast(lpad(to_hex(cast(:start as bigint) + n * :step), 12, '0')
            || '70008' || lpad(to_hex(n), 15, '0') as uuid),
       'bench', 1,
       case when n >= :count - :scorable then 'scorable' when n % 3 = 0 then 'dropped' else 'trained' end,
       case when n % 3 = 0 and n < :count - :scorable then 'side' end
from generate_series(cast(:low as bigint), cast(:high as bigint) - 1) as n
""")
_PLAN = (
    "explain (analyze, buffers, costs off, timing off) select turn_id from turn_states"
    " where stage = 'scorable' and (lease_until is null or lease_until < now())"
    " order by turn_id limit 1 for update skip locked"
)


@dataclass(slots=True)
class Side:
    """A database of one size."""

    name: str
    rows: int
    engine: Engine
    milliseconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds)

    @property
    def slowest(self) -> float:
        return statistics.quantiles(self.milliseconds, n=100)[98]


def measure(large: int, claims: int) -> tuple[list[Side], str]:
    """Both sides, and the plan on the large one."""
    with scratch() as engine:
        sides = [_side(engine, "small", SMALL), _side(engine, "large", large)]
        for _ in range(claims):
            for side in sides:
                side.milliseconds.append(_claim(side.engine))
        with sides[1].engine.begin() as connection:
            plan = "\n".join(row[0] for row in connection.exec_driver_sql(_PLAN))
        for side in sides:
            side.engine.dispose()
    return sides, plan


def _side(server: Engine, name: str, rows: int) -> Side:
    admin = create_engine(server.url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"create database {name}")
    admin.dispose()
    where = server.url.set(database=name).render_as_string(hide_password=False)
    database.upgrade(where)
    engine = database.engine_at(where)
    with engine.begin() as connection:
        for day in range(0, DAYS + 30, 10):
            moment = datetime(START.year, START.month, START.day, tzinfo=UTC) + timedelta(days=day)
            partitions.make_ahead(connection, moment, "month")
    _fill(engine, rows)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("vacuum analyze turn_states")
        connection.exec_driver_sql("checkpoint")
    return Side(name, rows, engine)


def _fill(engine: Engine, rows: int) -> None:
    start = int(datetime(START.year, START.month, START.day, tzinfo=UTC).timestamp() * 1000)
    step = DAYS * 86_400_000 // rows
    given = {"start": start, "step": step, "count": rows, "scorable": SCORABLE}
    for low in range(0, rows, 1_000_000):
        with engine.begin() as connection:
            connection.execute(_FILL, given | {"low": low, "high": min(rows, low + 1_000_000)})


def _claim(engine: Engine) -> float:
    began = time.perf_counter()
    with engine.begin() as connection:
        claim = states.claim_scorable(connection, "bench", 60)
    if claim is None:
        raise SystemExit("nothing was left to claim")
    with engine.begin() as connection:
        states.finish(connection, claim, Stage.SCORED, None)
    return 1000 * (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.claims", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one line of JSON last")
    parser.add_argument("--rows", type=int, default=LARGE, help="rows of the large table")
    parser.add_argument("--claims", type=int, default=1000, help="claims on each side")
    asked = parser.parse_args()
    sides, plan = measure(asked.rows, asked.claims)
    print(f"{'rows':>12}{'claim p50 ms':>14}{'p99 ms':>10}", file=sys.stderr)
    for side in sides:
        print(f"{side.rows:>12,}{side.median:>14.2f}{side.slowest:>10.2f}", file=sys.stderr)
    print(plan, file=sys.stderr)
    small, large = sides
    if asked.json:
        ratio = round(large.median / small.median, 2)
        print(
            json.dumps(
                {
                    "claim_10m_vs_100k" if large.rows == LARGE else f"claim_{large.rows}_vs_100k": ratio,
                    "p99_ratio": round(large.slowest / small.slowest, 2),
                    "claim_ms": round(large.median, 2),
                }
            )
        )


if __name__ == "__main__":
    main()
