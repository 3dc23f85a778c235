"""Dukou itself in the gateway benchmark: a worker and its drainer, each on its own, and what Postgres has."""

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine, text

from bench.relaying.measure import ToolError, cpu_seconds
from bench.relaying.peers import Process, free_port, start
from dukou.store import database, embedded

_IDLE_SECONDS = 3.0  # in which a drainer has imported everything and connected
_DRAIN_SECONDS = 300.0


@dataclass(slots=True)
class Dukou:
    """One worker with a spool of its own. Its drainer stands still while the worker is measured."""

    worker: Process
    drainer: Process
    database: Engine
    drained: int = 0  # requests whose turns are in Postgres

    def drain(self, expected: int) -> float:
        """Lets the drainer run until Postgres has `expected` turns; returns its CPU seconds.

        Raises ToolError where the drainer ends.
        """
        before = cpu_seconds(self.drainer.pid)
        os.kill(self.drainer.pid, signal.SIGCONT)
        deadline = time.monotonic() + _DRAIN_SECONDS
        while count(self.database) < expected and time.monotonic() < deadline:
            if self.drainer.process.poll() is not None:
                raise ToolError(f"the drainer ended: {self.drainer.log}")
            time.sleep(0.05)
        used = cpu_seconds(self.drainer.pid) - before
        os.kill(self.drainer.pid, signal.SIGSTOP)
        return used


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """The URL of an empty embedded Postgres with Dukou's tables."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    url = embedded.ensure_running(folder)
    try:
        database.upgrade(url)
        yield url
    finally:
        embedded.stop(folder)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def dukou(name: str, upstream: int, url: str, folder: Path, dialect: str) -> Iterator[Dukou]:
    """A worker and a drainer; `dialect` plain: it records without asking for token ids."""
    port = free_port()
    settings = _settings(folder, upstream, url, port, dialect)
    gateway = [sys.executable, "-m", "gateway"]
    with (
        start(name, [*gateway, "serve", "--config", str(settings)], port, folder) as worker,
        start(f"{name}-drainer", [*gateway, "drain", "--config", str(settings)], 0, folder) as drainer,
    ):
        time.sleep(_IDLE_SECONDS)
        os.kill(drainer.pid, signal.SIGSTOP)
        connected = database.engine_at(url)
        try:
            yield Dukou(worker, drainer, connected)
        finally:
            connected.dispose()
            os.kill(drainer.pid, signal.SIGCONT)


def count(connected: Engine) -> int:
    """How many requests have their turn in Postgres."""
    with connected.connect() as connection:
        return int(connection.scalar(text("select count(*) from turns where choice_index = 0")) or 0)


def _settings(folder: Path, upstream: int, url: str, port: int, dialect: str) -> Path:
    """A config file, and the routes file that a reconciler would have written."""
    engine = f"http://127.0.0.1:{upstream}"
    route = {"url": engine, "state": "ready", "version_low": 1, "version_high": 1, "dialect": dialect}
    route |= {"sampling_defaults": {}}
    run = folder / "run"
    run.mkdir(parents=True, exist_ok=True)
    (run / "routes.json").write_text(json.dumps({"engines": [route]}))
    settings = folder / "config.toml"
    lines = [
        f"state_dir = {json.dumps(str(folder))}",
        f"[database]\nurl = {json.dumps(url)}",
        f"[gateway]\nport = {port}",
        f'[engine]\nurls = [{json.dumps(engine)}]\nserved_name = "fake"',
    ]
    settings.write_text("\n".join(lines) + "\n")
    return settings
