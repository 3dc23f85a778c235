"""The loop's parts: Postgres, the scorer, the collector, the trainer, the live pointer.

Each is made when it is first needed, so that the learner can start before anything else is there, and a
scorer never imports torch.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from sqlalchemy import Engine

from learner.batch.collect import ClosedBatch, NoBatch, close_batch
from learner.status.facts import StatusFacts
from learner.status.read import settings_of
from learner.train.publish import advance
from store import database, processes
from store.config_model import Config
from store.funnel import snapshot
from store.processes import Heartbeat
from store.stages import REASONS

if TYPE_CHECKING:
    from learner.score.scorer import Scorer, ScoreReport
    from learner.train.trainer import StepReport, Trainer

#: The metrics that a step's log line shows; `steps.metrics` has all.
SHOWN = ("reward/mean", "loss", "kl/mean", "optim/grad_norm")

#: Turns scored in one round at most; a round also ends after a minute, and when the process stops.
SCORED_AT_ONCE = 10_000


#: How often the live version is compared with the one before: that reads some thousand turns.
COMPARED_EVERY = timedelta(seconds=10)


class Parts(Protocol):
    """The stages, and what they stand on. Each may raise; none keeps state that a restart would miss."""

    poll_interval: float
    dry_run: bool

    def connect(self) -> None:
        """Postgres and its tables are there; cheap when that was seen already. From any thread."""
        ...

    def lost(self) -> None:
        """A round raised: `connect` looks again. From any thread."""
        ...

    def recover(self) -> None:
        """What a learner that died had finished is adopted; cheap when that was done already."""
        ...

    def forget(self) -> None:
        """A round of training raised: what is half done in memory is dropped, and recovered again."""
        ...

    def score(self) -> "ScoreReport": ...

    def batch(self) -> int | NoBatch:
        """The id of the batch to train next, or what is missing."""
        ...

    def open_batch(self) -> int | None:
        """The id of a batch that is closed and not trained."""
        ...

    def train(self, batch_id: int) -> str:
        """One optimizer step; a line about it."""
        ...

    def publish(self, *, asked: bool = False) -> str | None:
        """Makes the newest version live, by itself or `asked`; a line about it, None: nothing to do."""
        ...

    def facts(self) -> StatusFacts: ...


class RealParts:
    def __init__(self, config: Config, stopping: Callable[[], bool] = lambda: False) -> None:
        """`stopping` is asked before each turn that is judged."""
        self.config = config
        self._stopping = stopping
        self.poll_interval = config.batch.poll_interval
        self.dry_run = config.trainer.dry_run
        self._lock = Lock()
        self._compare_at = datetime.min.replace(tzinfo=UTC)
        self._sound = False
        self._engine: Engine | None = None
        self._scorer: Scorer | None = None
        self._trainer: Trainer | None = None

    def connect(self) -> None:
        """From any thread. Raises DatabaseError, which says what would help."""
        with self._lock:
            if self._sound:
                return
            if self._engine is None:
                self._engine = database.engine(self.config)
            else:
                database.url(self.config)  # starts the embedded server again where it died
            database.check(self._engine)
            self._sound = True

    def lost(self) -> None:
        """A round failed: the next `connect` looks again."""
        self._sound = False

    def forget(self) -> None:
        """What the trainer holds in memory may be half of a step: it is read from its checkpoint again."""
        self._trainer = None

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()

    def score(self) -> "ScoreReport":
        if self._scorer is None:
            from learner.score.scorer import Scorer

            self._scorer = Scorer(self.engine, self.config, stopping=self._stopping)
        return self._scorer.run_once(SCORED_AT_ONCE)

    def recover(self) -> None:
        """Adopts what a learner that died left behind; nothing where that is done, or nothing is trained."""
        if self._trainer is None and not self.dry_run:
            from learner.train.trainer import Trainer

            trainer = Trainer(self.engine, self.config)
            trainer.recover()
            self._trainer = trainer

    def batch(self) -> int | NoBatch:
        outcome = close_batch(self.engine, self.config, datetime.now(UTC))
        return outcome.batch_id if isinstance(outcome, ClosedBatch) else outcome

    def open_batch(self) -> int | None:
        found = self.facts().snapshot
        return found.open_batch.id if found and found.open_batch else None

    def train(self, batch_id: int) -> str:
        self.recover()
        if self._trainer is None:
            raise RuntimeError("nothing is trained while trainer.dry_run is on")
        return describe(self._trainer.step(batch_id))

    def publish(self, *, asked: bool = False) -> str | None:
        """One move of the live pointer, where there is one to make."""
        now = datetime.now(UTC)
        look = now >= self._compare_at
        if look:
            self._compare_at = now + COMPARED_EVERY
        return advance(self.engine, self.config, now, asked=asked, look=look)

    def facts(self) -> StatusFacts:
        with self.engine.connect() as connection:
            return StatusFacts(settings_of(self.config), snapshot(connection, self.config.policy.name))

    def write_heartbeat(self, heartbeat: Heartbeat) -> bool:
        """Writes to `processes`; False while there is no connection. Raises SQLAlchemyError."""
        if self._engine is None or not self._sound:
            return False
        with self._engine.begin() as connection:
            processes.beat(connection, heartbeat)
        return True

    @property
    def engine(self) -> Engine:
        """After `connect`."""
        if self._engine is None:
            raise RuntimeError("connect() comes first")
        return self._engine


def describe(step: "StepReport") -> str:
    """A step's line in the log."""
    if step.status == "skipped":
        return f"skipped batch={step.batch_id} because {REASONS.get(step.reason or '', step.reason)}"
    measured = ((name, step.metrics.get(name)) for name in SHOWN) if step.metrics else ()
    shown = "".join(f" {name}={value:.4g}" for name, value in measured if value is not None)
    made = f"trained step={step.number} batch={step.batch_id} version={step.version}"
    return f"{made} seconds={step.seconds:.1f}{shown}"
