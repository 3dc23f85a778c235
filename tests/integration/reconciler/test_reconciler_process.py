"""The reconciler as a process of its own: it starts before everything, beats, and stops when told."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine, select

from dukou.store.tables import processes
from gateway.reconcile.routes_file import remember
from tests.fakes.sglang import FakeSGLang

RUN = """
import json, sys
from gateway.reconcile.process import main
from dukou.settings.model import Config
main(Config.model_validate(json.loads(sys.argv[1])))
"""
ROOT = Path(__file__).resolve().parents[3]


def start(state: Path, fake: FakeSGLang, database_url: str) -> subprocess.Popen[bytes]:
    config = {
        "state_dir": str(state),
        "database": {"url": database_url},
        "engine": {"urls": [fake.url]},
        "publish": {"poll_interval": 0.05},
    }
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", RUN, json.dumps(config)], env=environ)


def until(holds: Callable[[], bool]) -> None:
    """Fails where it does not come to hold; how long that takes is nobody's concern."""
    for _ in range(600):
        if holds():
            return
        time.sleep(0.05)
    pytest.fail("it did not happen")


def test_it_serves_beats_and_ends_cleanly_at_sigterm(
    tmp_path: Path, fake: FakeSGLang, db: Engine, database_url: str
) -> None:
    process = start(tmp_path, fake, database_url)
    try:

        def beats() -> bool:
            with db.begin() as connection:
                row = connection.execute(select(processes.c.doing)).one_or_none()
            return row is not None and row.doing == "1 of 1 engines serve"

        until(beats)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


def test_it_writes_routes_while_there_is_no_postgres(tmp_path: Path, fake: FakeSGLang) -> None:
    process = start(tmp_path, fake, "postgresql://nobody@127.0.0.1:1/none")
    try:
        until(lambda: fake.url in remember(tmp_path / "run" / "routes.json"))
        assert process.poll() is None
        assert remember(tmp_path / "run" / "routes.json")[fake.url].span == (0, 0)
    finally:
        process.kill()
        process.wait()


def test_it_says_why_an_engine_does_not_serve(
    tmp_path: Path, fake: FakeSGLang, db: Engine, database_url: str
) -> None:
    fake.die()
    process = start(tmp_path, fake, database_url)
    try:

        def explains() -> bool:
            with db.begin() as connection:
                waits_for = connection.scalar(select(processes.c.waits_for))
            return waits_for == f"{fake.url} (nobody answers at this address)"

        until(explains)
    finally:
        process.kill()
        process.wait()
