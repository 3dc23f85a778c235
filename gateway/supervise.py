"""Keeps the gateway's processes alive: workers on one listening socket, a drainer, a reconciler."""

import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dukou.settings.model import Config
from gateway.relay import app

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_STEADY_SECONDS = 3.0  # a child that lived so long did start: it was killed, and starts again at once
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 30.0
_STOP_SECONDS = app.GRACE_SECONDS + 15.0
_TICK_SECONDS = 0.2


def backoff(lived: float, last_delay: float) -> float:
    """Seconds until a child that died after `lived` seconds is started again."""
    if lived >= _STEADY_SECONDS:
        return 0.0
    return min(_LONGEST_DELAY, max(_FIRST_DELAY, 2 * last_delay))


@dataclass(slots=True)
class Child:
    """One process that is to be there all the time."""

    name: str
    arguments: list[str]
    descriptors: tuple[int, ...] = ()
    process: "subprocess.Popen[bytes] | None" = None
    started: float = 0.0
    start_at: float = 0.0
    delay: float = field(default=0.0)

    def start(self, now: float, before: Callable[[], None]) -> None:
        command = [sys.executable, "-m", "gateway", *self.arguments]
        self.process = subprocess.Popen(command, pass_fds=self.descriptors, preexec_fn=before)
        self.started = now

    def check(self, now: float) -> None:
        """Notices a death, and plans the next start."""
        if self.process is None or self.process.poll() is None:
            return
        self.delay = backoff(now - self.started, self.delay)
        self.start_at = now + self.delay
        logger.error("%s ended (%s): again in %.1f s", self.name, self.process.returncode, self.delay)
        self.process = None

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()


def run(config: Config, config_path: Path | None) -> int:
    """Runs until SIGTERM or SIGINT; returns the exit status."""
    try:
        sock = app.listen(config.gateway.host, config.gateway.port)
    except OSError as error:
        where = f"{config.gateway.host}:{config.gateway.port}"
        print(f"cannot listen on {where}: {error.strerror}. Another port: --port 0", file=sys.stderr)
        return 1
    options = ["--config", str(config_path)] if config_path is not None else []
    options += ["--host", config.gateway.host, "--port", str(config.gateway.port), "--supervised"]
    descriptor = sock.fileno()
    workers = [
        Child(f"worker {n}", ["serve", *options, "--fd", str(descriptor)], (descriptor,))
        for n in range(config.gateway.workers)
    ]
    drainer, reconciler = Child("drainer", ["drain", *options]), Child("reconciler", ["reconcile", *options])
    logger.info("gateway listens on %s", app.address(sock))
    stopping = _stop_flag()
    _keep([*workers, drainer, reconciler], stopping)
    sock.close()
    # The drainer goes last: it moves what the workers still had to say.
    _stop([*workers, reconciler])
    _stop([drainer])
    return 0


def _keep(children: list[Child], stopping: list[int]) -> None:
    before = _die_with_parent(os.getpid())
    while not stopping:
        now = time.monotonic()
        for child in children:
            child.check(now)
            if child.process is None and now >= child.start_at:
                child.start(now, before)
        time.sleep(_TICK_SECONDS)


def _stop(children: list[Child]) -> None:
    deadline = time.monotonic() + _STOP_SECONDS
    for child in children:
        child.stop()
    for child in children:
        if child.process is None:
            continue
        try:
            child.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            logger.warning("%s does not end: killed", child.name)
            child.process.kill()
            child.process.wait()


def _stop_flag() -> list[int]:
    """A list that is empty until SIGTERM or SIGINT."""
    seen: list[int] = []

    def note(number: int, frame: object) -> None:
        seen.append(number)

    signal.signal(signal.SIGTERM, note)
    signal.signal(signal.SIGINT, note)
    return seen


def _die_with_parent(parent: int) -> Callable[[], None]:
    """What a child does before it runs: it asks for SIGTERM when its supervisor dies, however it dies."""
    libc = ctypes.CDLL(None, use_errno=True)

    def before() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before the call
            os._exit(1)

    return before
