"""The drainer: moves what the workers spooled into Postgres. `python -m gateway drain`.

While Postgres is away nothing is lost: positions stay, the spool grows, and the drainer tries again.
"""

import gc
import logging
import signal
import threading
from collections.abc import Callable
from functools import partial

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from dukou.errors import DatabaseError
from dukou.settings.model import Config
from dukou.settings.paths import StatePaths
from dukou.store import database
from dukou.store.postgres_errors import line_of
from gateway.drain import report
from gateway.drain.drainer import Drainer
from gateway.drain.report import Reporter
from gateway.spool.reader import SpoolReader, only_drainer

_log = logging.getLogger(__name__)

PAUSE = 0.1  # seconds between passes while the drainer keeps up: each costs as much as ten turns
GARBAGE = 100_000  # new objects between looks for cycles; turns have none
FIRST_DELAY, LONGEST_DELAY = 0.1, 5.0  # seconds between attempts while Postgres is away
SAY_AGAIN = 60.0  # seconds
LAST_PASSES = 50  # after the signal to stop

Wait = Callable[[float], object]
#: What passes by itself, or once an operator has mended it: Postgres is away or full, the disk will not read.
TROUBLES = (SQLAlchemyError, DatabaseError, OSError)


def main(config: Config) -> None:
    """Drains until SIGTERM or SIGINT, and once more after it. One drainer a spool: others stand by."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    folder = StatePaths.for_config(config).spool
    # What is imported stays. Looking through everything after each 700 new objects was a tenth of all CPU.
    gc.freeze()
    gc.set_threshold(GARBAGE)
    while not stop.is_set():
        with only_drainer(folder) as is_alone:
            if is_alone:
                path = StatePaths.for_config(config).metrics / report.FILE_NAME
                # A drainer that dies again and again does not advance, however young each of them is.
                last = report.read(path)
                advanced_at = (last and last.advanced_at) or 0.0
                drainer = Drainer(config, SpoolReader(folder), advanced_at=advanced_at)
                reporter = Reporter(path, drainer.now)
                run(drainer, lambda: connect(config), stop, reporter=reporter)
            else:
                _log.info("another drainer has %s: standing by", folder)
                stop.wait(SAY_AGAIN)


def connect(config: Config) -> Engine:
    """An engine whose schema is right; also starts the embedded Postgres where it is needed.

    Raises:
        DatabaseError: what is wrong, in a sentence.
    """
    connected = database.engine(config)
    database.check(connected)
    return connected


def run(
    drainer: Drainer,
    connect: Callable[[], Engine],
    stop: threading.Event,
    wait: Wait | None = None,
    reporter: Reporter | None = None,
) -> None:
    """Drains until `stop`. `connect` is asked again after every failure; `wait` sleeps for seconds."""
    wait = wait or stop.wait
    trouble = _Trouble(drainer.now)
    connected: Engine | None = None
    while not stop.is_set():
        try:
            connected = connected or connect()
            drainer.drain_once(connected)
        except TROUBLES as error:
            if connected is not None:
                connected.dispose()
            connected = None
            if reporter is not None:
                reporter.tell(partial(drainer.report, trouble=line_of(error)))
            wait(trouble.again(error))
            continue
        trouble.over()
        if reporter is not None:
            reporter.tell(drainer.report)
        if drainer.is_idle:
            wait(PAUSE)
    if connected is not None:
        _finish(drainer, connected)


def _finish(drainer: Drainer, connected: Engine) -> None:
    """Takes along what the workers wrote at their own end."""
    try:
        for _ in range(LAST_PASSES):
            if not drainer.drain_once(connected) and drainer.is_idle:
                break
    except TROUBLES as error:
        _log.warning("the last pass failed, the next drainer goes on from here: %s", line_of(error))
    connected.dispose()


class _Trouble:
    """How long to wait for Postgres, and when to say so."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._delay = FIRST_DELAY
        self._said_at: float | None = None

    def again(self, error: Exception) -> float:
        """Seconds until the next attempt."""
        if self._said_at is None or self._now() - self._said_at >= SAY_AGAIN:
            self._said_at = self._now()
            _log.warning("turns wait in the spool, nothing is lost: %s", line_of(error))
        delay, self._delay = self._delay, min(2 * self._delay, LONGEST_DELAY)
        return delay

    def over(self) -> None:
        if self._said_at is not None:
            _log.info("Postgres is back: draining goes on")
        self._delay, self._said_at = FIRST_DELAY, None
