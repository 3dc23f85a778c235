"""What a recorded spool becomes and what a recorded batch teaches, byte for byte and bit for bit.

Both stand for the code before its structure changed (tests/data/golden); this file goes when that is done.
The spool was written by real workers (a demo with the real engine) and by the tests of the drainer and of
lineage, with hostile records between.
"""

import gzip
import hashlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, select

from dukou.settings.model import Config
from dukou.store.tables import metadata
from gateway.drain.drainer import Drainer
from gateway.spool.reader import SpoolReader

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
CLOCK = 2_000_000_000.0  # later than every record: whatever waits for an earlier turn gives up
#: Written by the database, by its clock, or by the process.
VOLATILE = {"created_at", "changed_at", "recorded_at"}
SKIPPED = {"processes", "leases", "policies", "versions"}


def shown(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return value if isinstance(value, str | int | float | bool | list | dict | None) else repr(value)


def tables(db: Engine) -> list[str]:
    """Every row of every table as a line of JSON, in an order of their own."""
    lines = []
    with db.connect() as connection:
        for table in metadata.sorted_tables:
            if table.name in SKIPPED:
                continue
            kept = [column for column in table.columns if column.name not in VOLATILE]
            for row in connection.execute(select(*kept)):
                values = {column.name: shown(value) for column, value in zip(kept, row, strict=True)}
                if table.name == "set_aside" or values.get("untrainable_reason") == "unreadable":
                    values.pop("error")  # an exception's own words
                lines.append(json.dumps([table.name, values], default=repr, ensure_ascii=True))
    return sorted(lines)


def drained(db: Engine, folder: Path) -> list[str]:
    spool = folder / "spool"
    spool.mkdir()
    for packed in sorted(GOLDEN.glob("*.seg.gz")):
        (spool / packed.name.removesuffix(".gz")).write_bytes(gzip.decompress(packed.read_bytes()))
    clock = itertools.count(CLOCK)
    moment = [next(clock)]
    drainer = Drainer(Config(state_dir=folder), SpoolReader(spool), lambda: moment[0])
    idle = 0
    while idle < 10:  # a new file is looked at again, and a pass may end with nothing settled
        idle = 0 if drainer.drain_once(db) else idle + 1
        moment[0] = next(clock)
    return tables(db)


def digest(line: str) -> str:
    return hashlib.blake2b(line.encode(), digest_size=6).hexdigest()


def test_the_recorded_spool_becomes_the_same_rows(tmp_path, db):
    found = {digest(line): line for line in drained(db, tmp_path)}
    expected = set((GOLDEN / "rows.txt").read_text().split())
    assert [line for key, line in found.items() if key not in expected][:3] == []
    assert found.keys() == expected


def test_the_recorded_batch_makes_the_same_step(tmp_path):
    """In a process of its own: the same bits on every x86 CPU need the plainest instructions."""
    environ = os.environ | {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
        "OMP_NUM_THREADS": "1",
    }
    run = subprocess.run(
        [sys.executable, "-m", "tests.fakes.golden_step", str(tmp_path)],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(run.stdout) == json.loads((GOLDEN / "steps.json").read_text())
