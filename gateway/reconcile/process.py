"""The reconciler's process: it starts before, and outlives, Postgres and the engines."""

import fcntl
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dukou.settings.model import Config
from dukou.settings.paths import StatePaths
from dukou.store import database
from gateway.reconcile.postgres import ReconcilerStore
from gateway.reconcile.reconciler import Reconciler
from gateway.reconcile.selftest import SelfTests
from gateway.reconcile.sglang import Control

_POINTER_SECONDS = 0.1


def main(config: Config) -> None:
    """Runs until SIGTERM or SIGINT."""
    paths = StatePaths.for_config(config)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with ExitStack() as stack:
        stack.enter_context(_alone(paths.run / "reconciler.lock"))
        key = config.engine.api_key.get_secret_value()
        controls = [stack.enter_context(Control(url, key)) for url in config.engine.urls]
        owner = f"{socket.gethostname()}:{paths.root.resolve()}"
        store = ReconcilerStore(
            lambda: database.engine(config),
            config.policy.name,
            owner,
            pin_seconds=config.publish.pin_sessions,
        )
        stack.callback(store.close)
        asks = {control.url: control.chat for control in controls}
        tests = SelfTests(stack.enter_context(ThreadPoolExecutor(2)), asks, config.engine.served_name)
        reconciler = Reconciler(config, store, controls, paths.routes_file, tests=tests)
        while not stop.is_set():
            reconciler.tick()
            wait(stop, store, config.publish.poll_interval)


def wait(stop: threading.Event, store: ReconcilerStore, seconds: float) -> None:
    """Until the next look at the engines, or until a pointer moves: that is one small query."""
    until = time.monotonic() + seconds
    while not stop.wait(min(_POINTER_SECONDS, seconds)) and time.monotonic() < until:
        if store.moved():
            return


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Waits until no other reconciler of this state folder runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
