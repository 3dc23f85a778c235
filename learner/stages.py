"""The stages that the loop runs: scoring, batching, training, publishing, on a connection to Postgres.

The scorer and the trainer are made when they are first needed, so that the learner can start before anything
else is there, and a process that only scores never imports torch.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from sqlalchemy import Engine

from dukou.settings.model import Config
from dukou.store import database, processes
from dukou.store.funnel import snapshot
from dukou.store.processes import Heartbeat
from dukou.store.states import REASONS
from learner.batch.close import ClosedBatch, NoBatch, close_batch
from learner.status.facts import StatusFacts
from learner.status.read import settings_of
from learner.train.publish import advance

if TYPE_CHECKING:
    from learner.score.scorer import Scorer, ScoreReport
    from learner.train.trainer import StepReport, Trainer

#: The metrics in a step's log line; `steps.metrics` has all.
LOGGED_METRICS = ("reward/mean", "loss", "kl/mean", "optim/grad_norm")

#: Most turns scored in one round; a round also ends after a minute, and when the process stops.
MAX_TURNS_PER_ROUND = 10_000

#: Time between two comparisons of the live version with the one before; each reads some thousand turns.
COMPARE_INTERVAL = timedelta(seconds=10)


class Stages(Protocol):
    """The stages and their connection. Each method may raise; no state is kept that a restart would miss."""

    poll_interval: float
    dry_run: bool

    def connect(self) -> None:
        """Makes sure that Postgres and its tables are there; cheap after the first time. From any thread."""
        ...

    def mark_disconnected(self) -> None:
        """Makes the next `connect` look again: a round raised. From any thread."""
        ...

    def recover(self) -> None:
        """Adopts what a learner that died had finished; cheap after the first time."""
        ...

    def discard_trainer(self) -> None:
        """Drops what training holds in memory, which may be half of a step: a round of training raised."""
        ...

    def score(self) -> "ScoreReport":
        """Scores turns for at most one round."""
        ...

    def batch(self) -> int | NoBatch:
        """The id of the batch to train next, closed now if need be, or what is missing for one."""
        ...

    def open_batch(self) -> int | None:
        """The id of a batch that is closed and not trained; None where there is none."""
        ...

    def train(self, batch_id: int) -> str:
        """Runs one optimizer step. Returns its line for the log."""
        ...

    def publish(self, *, asked: bool = False) -> str | None:
        """Makes at most one move of the live pointer; `asked`: although publish.automatic may be off.

        Returns its line for the log, None where there was nothing to do.
        """
        ...

    def facts(self) -> StatusFacts:
        """What the status sentence is decided from."""
        ...


class PostgresStages:
    """The stages as the learner runs them. `stopping` is asked before each turn that is judged."""

    def __init__(self, config: Config, stopping: Callable[[], bool] = lambda: False) -> None:
        self.config = config
        self._stopping = stopping
        self.poll_interval = config.batch.poll_interval
        self.dry_run = config.trainer.dry_run
        self._lock = Lock()
        self._compare_at = datetime.min.replace(tzinfo=UTC)
        self._connected = False
        self._engine: Engine | None = None
        self._scorer: Scorer | None = None
        self._trainer: Trainer | None = None

    def connect(self) -> None:
        """Raises DatabaseError, whose message says what to do."""
        with self._lock:
            if self._connected:
                return
            if self._engine is None:
                self._engine = database.engine(self.config)
            else:
                database.url(self.config)  # starts the embedded server again where it died
            database.check(self._engine)
            self._connected = True

    def mark_disconnected(self) -> None:
        self._connected = False

    def discard_trainer(self) -> None:
        """The next `recover` reads the trainer's state from its checkpoint."""
        self._trainer = None

    def close(self) -> None:
        """Closes all connections to Postgres."""
        if self._engine is not None:
            self._engine.dispose()

    def score(self) -> "ScoreReport":
        if self._scorer is None:
            from learner.score.scorer import Scorer

            self._scorer = Scorer(self.engine, self.config, stopping=self._stopping)
        return self._scorer.run_once(MAX_TURNS_PER_ROUND)

    def recover(self) -> None:
        """Does nothing where it was done already, or where trainer.dry_run is on."""
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
        now = datetime.now(UTC)
        look = now >= self._compare_at
        if look:
            self._compare_at = now + COMPARE_INTERVAL
        return advance(self.engine, self.config, now, asked=asked, look=look)

    def facts(self) -> StatusFacts:
        with self.engine.connect() as connection:
            return StatusFacts(settings_of(self.config), snapshot(connection, self.config.policy.name))

    def write_heartbeat(self, heartbeat: Heartbeat) -> bool:
        """Writes to `processes`; False while there is no connection. Raises SQLAlchemyError."""
        if self._engine is None or not self._connected:
            return False
        with self._engine.begin() as connection:
            processes.beat(connection, heartbeat)
        return True

    @property
    def engine(self) -> Engine:
        """The SQLAlchemy engine. Raises RuntimeError before the first `connect`."""
        if self._engine is None:
            raise RuntimeError("connect() comes first")
        return self._engine


def describe(step: "StepReport") -> str:
    """The log line of a step."""
    if step.status == "skipped":
        return f"skipped batch={step.batch_id} because {REASONS.get(step.reason or '', step.reason)}"
    measured = ((name, step.metrics.get(name)) for name in LOGGED_METRICS) if step.metrics else ()
    shown = "".join(f" {name}={value:.4g}" for name, value in measured if value is not None)
    result = f"trained step={step.number} batch={step.batch_id} version={step.version}"
    return f"{result} seconds={step.seconds:.1f}{shown}"
