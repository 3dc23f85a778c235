"""The whole gateway as its users start it: one command, several processes, none of which outlives it."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.fakes.gateway import ASK, CHAT, recorded
from tests.fakes.upstream import FakeUpstream, Send, answer

OK = [Send(answer(200, {"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}]}))]


def children_of(pid: int) -> dict[int, str]:
    """The direct children of a process, with their command lines."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid:
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
    return found


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def until(condition, seconds: float = 30.0) -> None:
    """Looks until `condition` holds; the bound only ends a test that would hang."""
    for _ in range(int(seconds / 0.05)):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it never came to hold")


@contextlib.contextmanager
def gateway(state: Path, engine: str, database_url: str, workers: int = 1) -> Iterator[tuple[int, str]]:
    """`python -m gateway` in `state`; its pid and URL."""
    (state / "config.toml").write_text(
        f'state_dir = "state"\n[gateway]\nport = 0\nworkers = {workers}\n'
        f'[engine]\nurls = ["{engine}"]\nserved_name = "m"\n'
    )
    environment = os.environ | {
        "DATABASE_URL": database_url,
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    log = state / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "--config", "config.toml"],
            cwd=state,
            env=environment,
            stderr=out,
        )
    try:
        until(lambda: "listens on" in log.read_text() or process.poll() is not None)
        found = re.search(r"listens on (\S+)", log.read_text())
        assert found, log.read_text()
        yield process.pid, found[1]
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(60)


@pytest.mark.anyio
async def test_it_serves_restarts_a_dead_worker_and_leaves_nobody_behind(
    tmp_path: Path, database_url: str
) -> None:
    async with FakeUpstream(OK) as engine, httpx.AsyncClient(timeout=30) as client:
        with gateway(tmp_path, engine.url, database_url, workers=2) as (pid, url):
            assert (await client.post(url + CHAT, json=ASK)).status_code == 200
            workers = {child for child, line in children_of(pid).items() if " serve " in line}
            assert len(workers) == 2
            os.kill(min(workers), signal.SIGKILL)
            until(
                lambda: len({c for c, line in children_of(pid).items() if " serve " in line} - workers) == 1
            )
            assert (await client.post(url + CHAT, json=ASK)).status_code == 200
            said = re.findall("the environment sets: (.*)", (tmp_path / "log").read_text())
            assert said == ["database.url (DATABASE_URL)"]
            everybody = set(children_of(pid))
            os.kill(pid, signal.SIGKILL)
            until(lambda: not any(alive(child) for child in everybody))
    assert all(reply is not None for _, reply in recorded(tmp_path / "state" / "spool"))


def test_a_port_that_is_taken_is_said_in_a_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        run = subprocess.run(
            [sys.executable, "-m", "gateway", "--port", port],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            check=False,
        )
    assert run.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in run.stderr
    assert "Traceback" not in run.stderr
