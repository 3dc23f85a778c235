"""The learner's whole loop.

    score                     scorable turns → scored, in a thread of its own
    batch → train → publish   scored turns → batch → step → live pointer, one after the other

Postgres, the judge or the engines may be missing, at start or later: the loop logs what it waits for, and
goes on when it is there. After a failed round, the next one finds in Postgres or on disk all that it needs.
"""

import logging
from collections.abc import Callable
from threading import Event, Thread
from typing import TYPE_CHECKING

from learner.heartbeat import HeartbeatWriter
from learner.log import LogThrottle, SamplesWait, backoff, diagnose
from learner.status.sentence import explain, from_inside
from learner.stop import Abandoned, Clock, Stop

if TYPE_CHECKING:
    from learner.batch.close import NoBatch
    from learner.stages import Stages

log = logging.getLogger("dukou.learner")

#: Seconds that a stop waits for the scoring thread; after that, its turns become free when their leases end.
SCORING_STOP_SECONDS = 2.0


class Loop:
    """Runs the stages in rounds and logs what it waits for, a line every `stall_warn_interval` seconds.

    Each round is a method that returns the seconds to pause after it.
    """

    def __init__(
        self,
        stages: "Stages",
        stop: Stop,
        clock: Clock,
        heartbeat: HeartbeatWriter,
        stall_warn_interval: float,
    ) -> None:
        self.stages, self.stop, self.clock, self.heartbeat = stages, stop, clock, heartbeat
        self.throttle = LogThrottle(stall_warn_interval)
        self.scoring_throttle = LogThrottle(stall_warn_interval)
        self.last_traced: str | None = None  # the last line that was logged with a traceback

    def run(self) -> None:
        """Runs all stages until a stop is requested."""
        scoring_stop = Event()
        scoring = Thread(
            target=self.repeat,
            args=(self.score, self.scoring_failed, scoring_stop),
            name="score",
            daemon=True,
        )
        scoring.start()
        try:
            self.repeat(self.learn, self.failed, self.stop.event)
        finally:
            scoring_stop.set()
            scoring.join(SCORING_STOP_SECONDS)

    def repeat(
        self, one_round: Callable[[], float], failed: Callable[[Exception], None], stop: Event
    ) -> None:
        """Runs rounds of one stage until `stop` is set. A round that raises is tried again after a pause."""
        failures = 0
        while not stop.is_set():
            try:
                pause = one_round()
                failures = 0
            except Abandoned:
                log.info("stopped in the middle of a step: it is replayed at the next start")
                return
            except Exception as error:  # the boundary of a round: whatever it was, the next one tries again
                failures += 1
                pause = backoff(failures)
                failed(error)
            self.clock.wait(stop, pause)

    def learn(self) -> float:
        """One round of batch → train → publish."""
        self.resume()
        self.publish()
        batch = self.stages.batch()
        if not isinstance(batch, int):
            return self.wait_for_samples(batch)
        if self.stages.dry_run:
            return self.idle("training", f"trainer.dry_run is on: batch {batch} is closed, not trained")
        self.train(batch)
        self.publish()
        return 0.0

    def score(self) -> float:
        """One round of scoring."""
        self.stages.connect()
        report = self.stages.score()
        self.heartbeat.note_judge_paused(report.waiting_because)
        if report.waiting_because:
            self.log_info(
                self.scoring_throttle.waiting_for("the judge", report.waiting_because, self.clock.now())
            )
        return 0.0 if report.claimed else self.stages.poll_interval

    def batch(self) -> float:
        """One round of closing a batch that another process trains."""
        self.stages.connect()
        batch = self.stages.batch()
        if isinstance(batch, int):
            return self.idle("a trainer", f"batch {batch} is closed")
        return self.wait_for_samples(batch)

    def train_closed(self) -> float:
        """One round of training a batch that another process closed."""
        self.resume()
        batch = self.stages.open_batch()
        if batch is None:
            return self.idle("a closed batch", "every batch is trained")
        self.train(batch)
        return 0.0

    def publish_asked(self) -> float:
        """One round of moving the live pointer, although publish.automatic may be off."""
        self.stages.connect()
        line = self.stages.publish(asked=True)
        self.log_info(line)
        return 0.0 if line else self.idle("a new version", "the newest version is live")

    def resume(self) -> None:
        """Connects, and adopts what a learner that died had finished."""
        self.stages.connect()
        with self.stop.abandonable():
            self.stages.recover()
        self.log_info(self.throttle.resumed())

    def idle(self, what: str, because: str) -> float:
        """Shows and logs a wait for something else than samples."""
        self.heartbeat.show("waiting", waits_for=f"{what}: {because}")
        self.log_info(self.throttle.waiting_for(what, because, self.clock.now()))
        return self.stages.poll_interval

    def wait_for_samples(self, missing: "NoBatch") -> float:
        """Shows and logs why no batch can be closed."""
        self.heartbeat.note_trouble(None)
        answer = explain(from_inside(self.stages.facts(), self.heartbeat.current()))
        self.heartbeat.show("waiting for samples", waits_for=answer.sentence())
        wait = SamplesWait(
            missing.needed,
            missing.current,
            missing.oldest_seconds,
            answer.kind,
            f"{answer.because}; {answer.change}",
        )
        self.log_info(self.throttle.waiting_for_samples(wait, self.clock.now()))
        return self.stages.poll_interval

    def train(self, batch_id: int) -> None:
        """Trains one closed batch."""
        self.heartbeat.show(f"training batch {batch_id}")
        with self.stop.abandonable():
            line = self.stages.train(batch_id)
        self.heartbeat.note_trouble(None)
        self.log_info(line)
        self.throttle.reset()

    def publish(self) -> None:
        """Moves the live pointer where a move is due."""
        self.log_info(self.stages.publish())

    def failed(self, error: Exception) -> None:
        """Shows and logs why a round of batching, training or publishing raised."""
        what, because = diagnose(error, "training")
        self.heartbeat.show("waiting", waits_for=f"{what}: {because}")
        self.heartbeat.note_trouble(because)
        self.log_warning(
            self.throttle.waiting_for(what, because, self.clock.now()), error if what == "training" else None
        )
        self.stages.mark_disconnected()
        self.stages.discard_trainer()

    def scoring_failed(self, error: Exception) -> None:
        """Shows and logs why a round of scoring raised; training goes on."""
        what, because = diagnose(error, "scoring")
        self.heartbeat.note_judge_paused(because)
        self.stages.mark_disconnected()
        self.log_warning(
            self.scoring_throttle.waiting_for(what, because, self.clock.now()),
            error if what == "scoring" else None,
        )

    def log_warning(self, line: str | None, error: Exception | None) -> None:
        """Logs a line, with the traceback of `error` unless the last traceback had the same line."""
        if line:
            log.warning(line, exc_info=error if line != self.last_traced else None)
            self.last_traced = line if error else self.last_traced

    def log_info(self, line: str | None) -> None:
        if line:
            log.info(line)
