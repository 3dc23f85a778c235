"""A bench that runs beside a real Dukou's state, named by the environment, does not touch it."""

import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: Stands in for SGLang's interpreter: it answers that it is ready, and nothing else.
READY = f"""#!{sys.executable}
import http.server, sys
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Ready).serve_forever()
"""

#: What the publishing bench does first, and the writing that went wrong: a version that is made live.
PUBLISHED = """
import json, sys
from pathlib import Path
from bench.publishing.plant import Plant
from bench.publishing.stack import Stack
from dukou.store.versions import Probe

state = Path(sys.argv[1])
stack = Stack(state, "m", "full")
try:
    stack.begin("reconcile")
    (state / "planted").mkdir()
    number = stack.publish([Plant(state / "planted", Probe(()))] * 2)
    stack.wait(stack.paths.routes_file.is_file, "a routes file")
finally:
    stack.close()
print(json.dumps([number, str(stack.paths.root)]))
"""


@dataclass
class Beside:
    """A state folder that must stay as it is, and a database that must not be asked."""

    state: Path
    port: int
    before: str = ""
    environ: dict[str, str] = field(default_factory=dict)

    def digest(self) -> str:
        """Of every name, and of every file's content and time."""
        found = hashlib.sha256()
        for path in sorted(self.state.rglob("*")):
            content = path.read_bytes() if path.is_file() else b""
            found.update(f"{path} {path.lstat().st_mtime_ns} ".encode() + content)
        return found.hexdigest()


@contextmanager
def untouched(state: Path) -> Iterator[Beside]:
    """Says at the end whether anything was written or asked."""
    for name in ("engine/bin/python", "models/m/config.json", "postgres/data/PG_VERSION", "run/routes.json"):
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        (state / name).write_text("{}")
    (state / "engine/bin/python").write_text(READY)
    (state / "engine/bin/python").chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as database:
        database.setblocking(False)
        beside = Beside(state, database.getsockname()[1])
        beside.before = beside.digest()
        beside.environ = {
            **{name: value for name, value in os.environ.items() if "MAKE" not in name},
            "PYTHONPATH": str(ROOT),
            "DUKOU_STATE_DIR": str(state),
            "DATABASE_URL": f"postgresql://real@127.0.0.1:{beside.port}/real",
            "DUKOU_DATABASE_URL": f"postgresql://real@127.0.0.1:{beside.port}/real",
            "DUKOU_PUBLISH_FORM": "adapter",
            "PGHOSTADDR": "127.0.0.1",
            "PGPORT": str(beside.port),
        }
        yield beside
        with pytest.raises(BlockingIOError):
            database.accept()
    assert beside.digest() == beside.before


def test_make_bench_writes_and_asks_nothing_that_the_environment_names(tmp_path: Path) -> None:
    with untouched(tmp_path / "state") as beside:
        ran = subprocess.run(
            [
                "make",
                "--no-print-directory",
                "-o",
                ".dukou/venv/.installed",
                f"BIN={Path(sys.executable).parent}",
                "bench",
                "B=storage --turns 2",
            ],
            cwd=ROOT,
            env=beside.environ,
            capture_output=True,
            text=True,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1])


def test_the_publishing_bench_publishes_into_a_database_of_its_own(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    with untouched(tmp_path / "state") as beside:
        ran = subprocess.run(
            [sys.executable, "-c", PUBLISHED, str(own)],
            cwd=tmp_path,
            env=beside.environ,
            capture_output=True,
            text=True,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    number, root = json.loads(ran.stdout.splitlines()[-1])
    assert (number, root) == (1, str(own))
