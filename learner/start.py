"""Starts a verb: logging, signals, the reporting thread, and the loop or one stage of it."""

import logging
import os
import sys
import threading
from collections.abc import Callable

from learner.board import HeartbeatWriter
from learner.loop import Loop
from learner.parts import RealParts
from learner.stop import Stop, SystemClock
from learner.trouble import diagnose
from store.config import Loaded
from store.config_environ import sentence
from store.processes import LearnerDetail

log = logging.getLogger("dukou.learner")

#: Verb → name of its process in `processes`, and what the process takes part in.
ROLES: dict[str, tuple[str, LearnerDetail]] = {
    "run": ("learner", LearnerDetail(scores=True, trains=True)),
    "score": ("scorer", LearnerDetail(scores=True)),
    "batch": ("batcher", LearnerDetail()),
    "train": ("trainer", LearnerDetail(trains=True)),
    "publish": ("publisher", LearnerDetail()),
}


def start(loaded: Loaded, verb: str, *, once: bool) -> int:
    """Runs the verb until it is told to stop, or once. Returns the exit status: 1 where one round failed."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if said := sentence(loaded.from_environment):
        log.info("%s", said)
    config = loaded.config
    stop, clock, heartbeat = Stop(), SystemClock(), HeartbeatWriter(*ROLES[verb])
    parts = RealParts(config, stop.event.is_set)
    loop = Loop(parts, stop, clock, heartbeat, config.batch.stall_warn_interval)
    with stop.listen(), heartbeat.running(clock, parts.write_heartbeat):
        status = run_once(loop, verb) if once else run(loop, verb)
    parts.close()
    _leave(status)
    return status


def run(loop: Loop, verb: str) -> int:
    if verb == "run":
        loop.run()
    else:
        stage, failed = stages(loop)[verb]
        loop.forever(stage, failed, loop.stop.event)
    log.info("stopped")
    return 0


def run_once(loop: Loop, verb: str) -> int:
    """One round of each stage of the verb; a fault ends it."""
    order = ("score", "learn") if verb == "run" else (verb,)
    try:
        for name in order:
            stages(loop)[name][0]()
    except Exception as error:  # the boundary of the process: logged as what it waits for
        return _give_up(error, verb)
    return 0


def _give_up(error: Exception, verb: str) -> int:
    what, because = diagnose(error, verb)
    log.error("waiting for %s because %s", what, because, exc_info=error if what == verb else None)
    return 1


def stages(loop: Loop) -> dict[str, tuple[Callable[[], float], Callable[[Exception], None]]]:
    """Each stage with what is done when it raises."""
    return {
        "learn": (loop.learn, loop.failed),
        "score": (loop.score, loop.scoring_failed),
        "batch": (loop.batch, loop.failed),
        "train": (loop.train_closed, loop.failed),
        "publish": (loop.publish_asked, loop.failed),
    }


def _leave(status: int) -> None:
    """Ends the process at once where a judge's call still runs in a thread: its lease gives the turn back.

    The interpreter would wait for that thread, for as long as the judge takes.
    """
    if any(thread.name == "score" and thread.is_alive() for thread in threading.enumerate()):
        logging.shutdown()
        os._exit(status)
