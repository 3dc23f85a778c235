"""Runs a verb of the learner: logging, signals, the heartbeat, and the loop or one stage of it."""

import logging
import os
import sys
import threading
from collections.abc import Callable

from dukou.settings.environment import sentence
from dukou.settings.load import Loaded
from dukou.store.processes import LearnerDetail
from learner.heartbeat import HeartbeatWriter
from learner.log import diagnose
from learner.loop import Loop
from learner.stages import PostgresStages
from learner.stop import Stop, SystemClock

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
    """Runs the verb until a signal, or for one round. Returns the exit status: 1 where that round failed."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if overrides := sentence(loaded.from_environment):
        log.info("%s", overrides)
    config = loaded.config
    stop, clock, heartbeat = Stop(), SystemClock(), HeartbeatWriter(*ROLES[verb])
    stages = PostgresStages(config, stop.event.is_set)
    loop = Loop(stages, stop, clock, heartbeat, config.batch.stall_warn_interval)
    with stop.listen(), heartbeat.running(clock, stages.write_heartbeat):
        status = run_once(loop, verb) if once else run(loop, verb)
    stages.close()
    _leave(status)
    return status


def run(loop: Loop, verb: str) -> int:
    """Runs the verb until a stop is requested. Returns the exit status."""
    if verb == "run":
        loop.run()
    else:
        one_round, failed = rounds(loop)[verb]
        loop.repeat(one_round, failed, loop.stop.event)
    log.info("stopped")
    return 0


def run_once(loop: Loop, verb: str) -> int:
    """Runs one round of each stage of the verb; the first error ends it. Returns the exit status."""
    order = ("score", "learn") if verb == "run" else (verb,)
    try:
        for name in order:
            rounds(loop)[name][0]()
    except Exception as error:  # the boundary of the process: logged as what it waits for
        _log_failure(error, verb)
        return 1
    return 0


def _log_failure(error: Exception, verb: str) -> None:
    what, because = diagnose(error, verb)
    log.error("waiting for %s because %s", what, because, exc_info=error if what == verb else None)


def rounds(loop: Loop) -> dict[str, tuple[Callable[[], float], Callable[[Exception], None]]]:
    """Name → one round of that stage, and what is done when it raises."""
    return {
        "learn": (loop.learn, loop.failed),
        "score": (loop.score, loop.scoring_failed),
        "batch": (loop.batch, loop.failed),
        "train": (loop.train_closed, loop.failed),
        "publish": (loop.publish_asked, loop.failed),
    }


def _leave(status: int) -> None:
    """Ends the process at once where a call of the judge still runs in the scoring thread.

    The interpreter would wait for that thread as long as the judge takes. The turn becomes free again when
    its lease ends.
    """
    if any(thread.name == "score" and thread.is_alive() for thread in threading.enumerate()):
        logging.shutdown()
        os._exit(status)
