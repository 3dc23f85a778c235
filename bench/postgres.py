"""A Postgres for one measurement: the embedded server in a folder of its own, with Dukou's tables."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine

from dukou.store import database, embedded


@contextmanager
def scratch() -> Iterator[Engine]:
    """An engine for a migrated, empty database; the server and its folder are gone afterwards."""
    state = Path(tempfile.mkdtemp(prefix="dukou-bench-"))
    (state / "postgres").mkdir()
    # What is measured is work, not this machine's disk.
    (state / "postgres" / "local.conf").write_text(
        "fsync = off\nsynchronous_commit = off\nmax_wal_size = '8GB'\n"
    )
    try:
        where = embedded.ensure_running(state)
        database.upgrade(where)
        engine = database.engine_at(where)
        yield engine
        engine.dispose()
    finally:
        embedded.stop(state)
        shutil.rmtree(state)
