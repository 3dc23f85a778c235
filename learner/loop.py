"""The learner's whole loop.

    score                     scorable turns → scored, in a thread of its own
    batch → train → publish   scored turns → batch → step → live pointer, one after the other

Anything may be missing, at start or later: the loop waits, says for what, and goes on. A failed round
changes nothing that the next one does not find again in Postgres or on disk.
"""

import logging
from collections.abc import Callable
from threading import Event, Thread
from typing import TYPE_CHECKING

from learner.board import HeartbeatWriter
from learner.say import Say, Waiting
from learner.status.sentence import explain, from_inside
from learner.stop import Abandoned, Clock, Stop
from learner.trouble import backoff, diagnose

if TYPE_CHECKING:
    from learner.batch.collect import NoBatch
    from learner.parts import Parts

log = logging.getLogger("dukou.learner")

#: Seconds that a stop waits for the scoring thread; its leases give the turns back if it takes longer.
PATIENCE = 2.0


class Loop:
    def __init__(
        self, parts: "Parts", stop: Stop, clock: Clock, heartbeat: HeartbeatWriter, stall_warn_interval: float
    ) -> None:
        self.parts, self.stop, self.clock, self.heartbeat = parts, stop, clock, heartbeat
        self.say = Say(stall_warn_interval)
        self.say_of_scoring = Say(stall_warn_interval)
        self.traced: str | None = None

    def run(self) -> None:
        """Everything, until a stop is asked."""
        scoring_stop = Event()
        scoring = Thread(
            target=self.forever,
            args=(self.score, self.scoring_failed, scoring_stop),
            name="score",
            daemon=True,
        )
        scoring.start()
        try:
            self.forever(self.learn, self.failed, self.stop.event)
        finally:
            scoring_stop.set()
            scoring.join(PATIENCE)

    def forever(self, stage: Callable[[], float], failed: Callable[[Exception], None], stop: Event) -> None:
        """Rounds of one stage, each of which says how many seconds to pause after it."""
        failures = 0
        while not stop.is_set():
            try:
                pause = stage()
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
        batch = self.parts.batch()
        if not isinstance(batch, int):
            return self.wait_for_samples(batch)
        if self.parts.dry_run:
            return self.idle("training", f"trainer.dry_run is on: batch {batch} is closed, not trained")
        self.train(batch)
        self.publish()
        return 0.0

    def score(self) -> float:
        """One round of scoring."""
        self.parts.connect()
        report = self.parts.score()
        self.heartbeat.note_judge_paused(report.waiting_because)
        if report.waiting_because:
            self.tell(self.say_of_scoring.waiting_for("the judge", report.waiting_because, self.clock.now()))
        return 0.0 if report.claimed else self.parts.poll_interval

    def batch(self) -> float:
        """One round of closing a batch, and nothing after it."""
        self.parts.connect()
        batch = self.parts.batch()
        if isinstance(batch, int):
            return self.idle("a trainer", f"batch {batch} is closed")
        return self.wait_for_samples(batch)

    def train_closed(self) -> float:
        """One round of training what is closed already."""
        self.resume()
        batch = self.parts.open_batch()
        if batch is None:
            return self.idle("a closed batch", "every batch is trained")
        self.train(batch)
        return 0.0

    def publish_asked(self) -> float:
        """One round of moving the live pointer, whatever publish.automatic says."""
        self.parts.connect()
        line = self.parts.publish(asked=True)
        self.tell(line)
        return 0.0 if line else self.idle("a new version", "the newest version is live")

    def resume(self) -> None:
        self.parts.connect()
        with self.stop.abandonable():
            self.parts.recover()
        self.tell(self.say.resumed())

    def idle(self, what: str, because: str) -> float:
        self.heartbeat.show("waiting", waits_for=f"{what}: {because}")
        self.tell(self.say.waiting_for(what, because, self.clock.now()))
        return self.parts.poll_interval

    def wait_for_samples(self, missing: "NoBatch") -> float:
        self.heartbeat.note_trouble(None)
        answer = explain(from_inside(self.parts.facts(), self.heartbeat.current()))
        self.heartbeat.show("waiting for samples", waits_for=answer.sentence())
        waiting = Waiting(
            missing.needed,
            missing.current,
            missing.oldest_seconds,
            answer.kind,
            f"{answer.because}; {answer.change}",
        )
        self.tell(self.say.waiting(waiting, self.clock.now()))
        return self.parts.poll_interval

    def train(self, batch_id: int) -> None:
        self.heartbeat.show(f"training batch {batch_id}")
        with self.stop.abandonable():
            line = self.parts.train(batch_id)
        self.heartbeat.note_trouble(None)
        self.tell(line)
        self.say.went_on()

    def publish(self) -> None:
        self.tell(self.parts.publish())

    def failed(self, error: Exception) -> None:
        what, because = diagnose(error, "training")
        self.heartbeat.show("waiting", waits_for=f"{what}: {because}")
        self.heartbeat.note_trouble(because)
        self.warn(
            self.say.waiting_for(what, because, self.clock.now()), error if what == "training" else None
        )
        self.parts.lost()
        self.parts.forget()

    def scoring_failed(self, error: Exception) -> None:
        what, because = diagnose(error, "scoring")
        self.heartbeat.note_judge_paused(because)
        self.parts.lost()
        self.warn(
            self.say_of_scoring.waiting_for(what, because, self.clock.now()),
            error if what == "scoring" else None,
        )

    def warn(self, line: str | None, error: Exception | None) -> None:
        """With the traceback where the fault is our own and was not the last one shown."""
        if line:
            log.warning(line, exc_info=error if line != self.traced else None)
            self.traced = line if error else self.traced

    def tell(self, line: str | None) -> None:
        if line:
            log.info(line)
