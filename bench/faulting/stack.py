"""The processes under test: the engine's stand-in, Postgres behind the proxy, the gateway, the learner."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sqlalchemy import make_url

from bench.faulting.procfs import children_of
from bench.faulting.proxy import Proxy
from dukou.store import database, embedded

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ("bench.faulting.engine",)
_READY_SECONDS = 60.0

_CONFIG = """state_dir = "{state}"
[database]
url = "postgresql://dukou@127.0.0.1:{proxy}/dukou"
[gateway]
port = {port}
workers = {workers}
[engine]
urls = ["{engine}"]
served_name = "m"
[trainer]
dry_run = true
"""


@dataclass(slots=True)
class Stack:
    """Everything lies in `folder`; Postgres, gateway and learner can be killed and started again."""

    folder: Path
    workers: int
    proxy: Proxy
    port: int = 0
    engine: "subprocess.Popen[bytes] | None" = None
    gateway: "subprocess.Popen[bytes] | None" = None
    learner: "subprocess.Popen[bytes] | None" = None

    @classmethod
    async def create(cls, folder: Path, workers: int, engine: Sequence[str] = ENGINE) -> "Stack":
        """Makes Postgres with its tables, and the engine: a module and its arguments."""
        where = await asyncio.to_thread(embedded.ensure_running, folder / "state")
        await asyncio.to_thread(database.upgrade, where)
        stack = cls(folder, workers, Proxy(f"{make_url(where).query['host']}/.s.PGSQL.5432"), _free_port())
        stack.engine = stack._start(*engine, stdout=subprocess.PIPE)
        return stack

    async def start(self) -> None:
        """Writes the settings and starts gateway and learner. The proxy is open already."""
        assert self.engine is not None
        assert self.engine.stdout is not None
        url = (await asyncio.to_thread(self.engine.stdout.readline)).decode().strip()
        settings = _CONFIG.format(
            state=self.folder / "state",
            proxy=self.proxy.port,
            port=self.port,
            workers=self.workers,
            engine=url,
        )
        (self.folder / "config.toml").write_text(settings)
        await self.start_gateway()
        self.start_learner()

    async def start_gateway(self) -> None:
        """Returns when a worker answers."""
        self.gateway = self._start("gateway", "--config", "config.toml")
        deadline = time.monotonic() + _READY_SECONDS
        while not await _answers(self.port):
            if time.monotonic() > deadline or self.gateway.poll() is not None:
                raise RuntimeError(f"the gateway does not start: see {self.folder / 'log'}")
            await asyncio.sleep(0.05)

    def start_learner(self) -> None:
        self.learner = self._start("learner", "--config", "config.toml")

    async def start_postgres(self) -> None:
        await asyncio.to_thread(embedded.ensure_running, self.folder / "state")

    def postmaster(self) -> int:
        pid_file = self.folder / "state" / "postgres" / "data" / "postmaster.pid"
        return int(pid_file.read_text().split("\n", 1)[0])

    def children(self, verb: str) -> list[int]:
        """The gateway's processes of one kind: serve, drain, reconcile."""
        assert self.gateway is not None
        return sorted(pid for pid, line in children_of(self.gateway.pid).items() if f" {verb} " in line)

    def stop(self) -> None:
        for process in (self.learner, self.gateway, self.engine):
            if process is not None and process.poll() is None:
                process.terminate()
                process.wait(60)
        embedded.stop(self.folder / "state")

    def _start(
        self, module: str, *arguments: str, stdout: int | IO[bytes] | None = None
    ) -> "subprocess.Popen[bytes]":
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=stdout or log,
                stderr=log,
                start_new_session=True,
            )


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


async def _answers(port: int) -> bool:
    """Whether a worker answers; connecting alone proves nothing, the supervisor listens before it."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        async with asyncio.timeout(5):
            return (await reader.readline()).startswith(b"HTTP/1.1 200")
    except (OSError, TimeoutError):
        return False
    finally:
        writer.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])
