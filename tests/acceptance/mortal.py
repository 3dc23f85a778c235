"""Learners and reconcilers as real processes that kill themselves, with SIGKILL, at a point they are told.

They come from a process of their own that has torch in memory: each is a fork of it, so that twenty of them
take seconds, and none inherits a connection or a thread of the test's.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

from dukou.settings.model import Config
from dukou.store import database

_FORKS = multiprocessing.get_context("forkserver")
_PRELOADED = ["learner.train.trainer", "gateway.reconcile.reconciler", "tests.acceptance.mortal"]
_SECONDS = 180.0
Work = Callable[[Config, str, "Countdown"], None]


class Countdown:
    """Counts points; before the one that was told, the process is gone."""

    def __init__(self, die_before: int | None) -> None:
        self.seen: list[str] = []
        self._die_before = die_before

    def point(self, what: str) -> None:
        self.seen.append(what)
        if len(self.seen) == self._die_before:
            os.kill(os.getpid(), signal.SIGKILL)


def run(work: Work, config: Config, url: str, die_before: int | None = None) -> list[str] | None:
    """The points that a process passed; None where it was killed before one of them."""
    _FORKS.set_forkserver_preload(_PRELOADED)
    ours, theirs = _FORKS.Pipe(duplex=False)
    process = _FORKS.Process(target=_main, args=(work, config, url, die_before, theirs))
    process.start()
    theirs.close()
    process.join(_SECONDS)
    if process.is_alive():
        process.kill()
        raise RuntimeError(f"the child of {work.__name__} hangs")
    if process.exitcode == -signal.SIGKILL and die_before is not None:
        return None
    if process.exitcode != 0:
        raise RuntimeError(f"the child of {work.__name__} ended with {process.exitcode}")
    seen: list[str] = ours.recv()
    return seen


def _main(work: Work, config: Config, url: str, die_before: int | None, tell: Connection) -> None:
    countdown = Countdown(die_before)
    work(config, url, countdown)
    tell.send(countdown.seen)


def learn(config: Config, url: str, countdown: Countdown) -> None:
    """What a learner does from a closed batch to a moved pointer. The points: whatever outlasts a process,
    from the version's folder on."""
    from learner.batch.close import ClosedBatch, close_batch
    from learner.train.publish import advance
    from learner.train.trainer import Trainer

    db = database.engine_at(url)
    _count_files(countdown, config.state_dir / "versions")
    _count_statements(countdown, db)
    trainer = Trainer(db, config)
    trainer.recover()
    now = datetime.now(UTC)
    outcome = close_batch(db, config, now)
    if isinstance(outcome, ClosedBatch):
        trainer.step(outcome.batch_id)
    advance(db, config, now, asked=True)


def reconcile(config: Config, url: str, countdown: Countdown) -> None:
    """What a reconciler does in a tick. The points: before and after each control call."""
    from dukou.settings.paths import StatePaths
    from gateway.reconcile.postgres import ReconcilerStore
    from gateway.reconcile.reconciler import Reconciler
    from gateway.reconcile.sglang import Control

    class Mortal(Control):
        def _send(self, method: str, path: str, body: Any, timeout: Any) -> Any:
            countdown.point(f"before {path}")
            answer = super()._send(method, path, body, timeout)
            countdown.point(f"after {path}")
            return answer

    store = ReconcilerStore(lambda: database.engine_at(url), config.policy.name, "mortal")
    with Mortal(config.engine.urls[0]) as control:
        Reconciler(config, store, [control], StatePaths.for_config(config).routes_file).tick()


def _count_files(countdown: Countdown, begins_in: Path) -> None:
    """Counts what makes, fills or moves a file under the state folder, from the first one in a folder on."""

    def hook(name: str, arguments: tuple[Any, ...]) -> None:
        path = str(arguments[0]) if arguments else ""
        if name not in ("os.mkdir", "os.rename", "open") or not path.startswith(str(begins_in.parent)):
            return
        begun = bool(countdown.seen) or (name == "os.mkdir" and path.startswith(str(begins_in)))
        if begun and not (name == "open" and _reads(arguments)):
            countdown.point(f"{name} {Path(path).name}")

    sys.addaudithook(hook)


def _reads(arguments: tuple[Any, ...]) -> bool:
    flags = arguments[2] if len(arguments) > 2 and isinstance(arguments[2], int) else os.O_RDONLY
    return flags & (os.O_WRONLY | os.O_RDWR) == 0


def _count_statements(countdown: Countdown, db: Engine) -> None:
    """Counts what writes to Postgres, and each commit of it, once a file was counted."""

    @event.listens_for(db, "before_cursor_execute")
    def _before(*given: Any) -> None:
        statement = str(given[2]).lstrip()
        if countdown.seen and statement.partition(" ")[0].lower() in ("insert", "update", "delete"):
            countdown.point(" ".join(statement.split()[:3]))

    @event.listens_for(db, "commit")
    def _commit(_: Any) -> None:
        if countdown.seen:
            countdown.point("commit")
