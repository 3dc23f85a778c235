"""The parts of one machine's Dukou, started, watched and stopped together.

Postgres, SGLang, gateway and learner are ordinary processes. Whichever dies is started again, whatever
killed it: nothing that matters lives in their memory.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dukou.local.engine import recommends
from dukou.settings.model import Config
from dukou.settings.paths import StatePaths
from dukou.store import database, embedded

STOP_SECONDS = 20.0
RESTART_SECONDS = 1.0


@dataclass
class Part:
    """One child process; its output goes to a log of its own."""

    name: str
    arguments: list[str]
    log: Path
    environ: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    last_start: float = field(default=float("-inf"))

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(self.environ),
                start_new_session=True,  # Ctrl-C reaches the supervisor, which stops its parts in order
            )
        self.starts += 1
        self.last_start = time.monotonic()

    def is_dead(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def stop(self) -> None:
        """SIGTERM, then SIGKILL to the whole process group after a while."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Stack:
    """Postgres, engine, gateway and learner under one configuration."""

    def __init__(self, config: Config, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
        self.config = config
        self.paths = StatePaths.for_config(config)
        self.say = say
        logs = self.paths.logs
        self.parts = [
            Part("engine", ["dukou", "engine", "start"], logs / "engine-start.log", environ),
            Part("gateway", ["gateway"], logs / "gateway.log", environ),
            Part("learner", ["learner"], logs / "learner.log", environ),
        ]
        self._changing = threading.Lock()  # of the parts, while the watch looks at them
        self._embedded = not config.database.url.get_secret_value()

    def start(self) -> None:
        self.say("Postgres: starting" if self._embedded else "Postgres: the one at DATABASE_URL")
        database.upgrade(database.url(self.config))
        for part in self.parts:
            self.say(f"{part.name}: starting (log: {part.log})")
            part.start()
        self.say(recommends.told(self.config))

    def watch(self) -> None:
        """Starts again what has died. Called about once a second."""
        if self._embedded and not embedded.is_running(self.paths.root):
            self.say("Postgres: gone, starting it again")
            embedded.ensure_running(self.paths.root)
        with self._changing:
            self._start_the_dead()

    def _start_the_dead(self) -> None:
        for part in self.parts:
            if part.is_dead() and time.monotonic() - part.last_start > RESTART_SECONDS * min(part.starts, 30):
                code = part.process.returncode if part.process else None
                self.say(f"{part.name}: gone (exit {code}), starting it again (log: {part.log})")
                part.start()

    def retire(self, name: str) -> None:
        """Stops one part, which the watch then leaves alone."""
        with self._changing:
            (part,) = (part for part in self.parts if part.name == name)
            self.parts.remove(part)
        part.stop()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watches in a thread of its own for as long as the block runs."""
        ended = threading.Event()

        def keep_watching() -> None:
            while not ended.wait(1.0):
                self.watch()

        thread = threading.Thread(target=keep_watching, name="watch")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def stop(self) -> None:
        for part in reversed(self.parts):
            part.stop()
        if self._embedded:
            embedded.stop(self.paths.root)
