"""Rows a second, and CPU, of writing ids and log-probabilities: Dukou's binary arrays beside other ways.

A row is a turn of 4,000 tokens: an int4[] and a float4[]. All write the same numbers from the same numpy
arrays, in batches of 20 rows a transaction, in turns within one run. `list` binds Python lists as psycopg
does by itself; `sqlalchemy` is its insert-many with ARRAY columns; `jsonb` is json.dumps into a jsonb column.
CPU is this process's and its Postgres backend's.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
from sqlalchemy import ARRAY, REAL, BigInteger, Column, Connection, Integer, MetaData, Table, insert

from bench.postgres import scratch
from dukou.store.binary import Float4Array, Int4Array

TOKENS, BATCH = 4000, 20
_metadata = MetaData()
_columns = (Column("id", BigInteger, primary_key=True), Column("ids", Int4Array), Column("said", Float4Array))
_arrays = Table("ours", _metadata, *_columns)
_lists = Table(
    "theirs",
    _metadata,
    Column("id", BigInteger, primary_key=True),
    Column("ids", ARRAY(Integer)),
    Column("said", ARRAY(REAL)),
)

Rows = list[tuple[int, npt.NDArray[np.int32], npt.NDArray[np.float32]]]
Way = Callable[[Connection, Rows], None]


@dataclass(frozen=True, slots=True)
class Cost:
    rows_per_second: float
    cpu_ms_per_row: float


def _ours(connection: Connection, rows: Rows) -> None:
    connection.execute(insert(_arrays), [{"id": n, "ids": ids, "said": said} for n, ids, said in rows])


def _sqlalchemy(connection: Connection, rows: Rows) -> None:
    values = [{"id": n, "ids": ids.tolist(), "said": said.tolist()} for n, ids, said in rows]
    connection.execute(insert(_lists), values)


def _list(connection: Connection, rows: Rows) -> None:
    with _psycopg(connection).cursor() as cursor:
        cursor.executemany(
            "insert into lists values (%s, %s::int4[], %s::float4[])",
            [(n, ids.tolist(), said.tolist()) for n, ids, said in rows],
        )


def _jsonb(connection: Connection, rows: Rows) -> None:
    with _psycopg(connection).cursor() as cursor:
        cursor.executemany(
            "insert into documents values (%s, %s)",
            [(n, json.dumps({"ids": ids.tolist(), "said": said.tolist()})) for n, ids, said in rows],
        )


def _psycopg(connection: Connection) -> psycopg.Connection[Any]:
    raw = connection.connection.driver_connection
    assert isinstance(raw, psycopg.Connection)
    return raw


WAYS: Mapping[str, Way] = {"array": _ours, "list": _list, "sqlalchemy": _sqlalchemy, "jsonb": _jsonb}


def measure(seconds: float) -> dict[str, Cost]:
    """The median of the rounds of each way."""
    rounds: dict[str, list[Cost]] = {name: [] for name in WAYS}
    with scratch() as engine, engine.connect() as connection:
        _metadata.create_all(connection)
        connection.exec_driver_sql("create table lists (like theirs including all)")
        connection.exec_driver_sql("create table documents (id bigint primary key, body jsonb)")
        pid = connection.exec_driver_sql("select pg_backend_pid()").scalar_one()
        connection.commit()
        end = time.monotonic() + seconds
        first = 0
        while time.monotonic() < end or len(rounds["jsonb"]) < 3:
            rows = _rows(first)
            first += BATCH
            for name, way in WAYS.items():
                rounds[name].append(_timed(connection, way, rows, pid))
    return {name: _median(costs) for name, costs in rounds.items()}


def _rows(first: int) -> Rows:
    random = np.random.default_rng(first)
    return [
        (
            first + n,
            random.integers(0, 150_000, TOKENS, dtype=np.int32),
            -random.exponential(1.0, TOKENS).astype(np.float32),
        )
        for n in range(BATCH)
    ]


def _timed(connection: Connection, way: Way, rows: Rows, pid: int) -> Cost:
    cpu, began = _cpu(pid), time.monotonic()
    way(connection, rows)
    connection.commit()
    took = time.monotonic() - began
    return Cost(BATCH / took, 1000 * (_cpu(pid) - cpu) / BATCH)


def _cpu(pid: int) -> float:
    """Seconds of this process and of the backend."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    backend = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own.ru_utime + own.ru_stime + backend


def _median(costs: list[Cost]) -> Cost:
    return Cost(
        statistics.median(cost.rows_per_second for cost in costs),
        statistics.fmean(cost.cpu_ms_per_row for cost in costs),  # a batch is short against the clock's tick
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.recorder", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one line of JSON last")
    parser.add_argument("--seconds", type=float, default=30, help="how long to measure")
    asked = parser.parse_args()
    found = measure(asked.seconds)
    print(f"{'way':<12}{'rows/s':>10}{'CPU ms/row':>12}", file=sys.stderr)
    for name, cost in found.items():
        print(f"{name:<12}{cost.rows_per_second:>10.0f}{cost.cpu_ms_per_row:>12.2f}", file=sys.stderr)
    if asked.json:
        ours = found.pop("array")
        line = {
            f"array_vs_{name}": round(ours.rows_per_second / one.rows_per_second, 2)
            for name, one in found.items()
        }
        line |= {
            f"cpu_{name}_vs_array": round(one.cpu_ms_per_row / ours.cpu_ms_per_row, 2)
            for name, one in found.items()
        }
        print(json.dumps(line | {"array_rows_per_second": round(ours.rows_per_second)}))


if __name__ == "__main__":
    main()
