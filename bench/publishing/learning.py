"""From a full batch to the first token of the version that it made, with the real trainer."""

import time
from datetime import UTC, datetime

from sqlalchemy import text

from bench.publishing.stack import Stack
from bench.publishing.users import Users, first_token
from dukou.store import scores
from dukou.store.scores import Score
from learner.batch.close import ClosedBatch, close_batch
from learner.train.publish import advance
from learner.train.trainer import Trainer

_TAKEN = text(
    "select t.id from turns t join turn_states s on s.turn_id = t.id "
    "where t.policy_version_min = :live and t.policy_version_max = :live and t.trainable "
    "and s.stage = 'awaiting_next' order by t.id limit :size"
)
_MOVED = text("update turn_states set stage = 'scored' where turn_id = any(:turns)")


def batch_to_first_token(stack: Stack, trainer: Trainer, users: Users) -> float:
    """Seconds, while the users stream. Scores are made up: what is measured is the way, not the learning."""
    size = stack.config.batch.rollout_batch_size
    stack.wait(lambda: _score(stack, size), f"{size} turns of the live version")
    began = time.monotonic()
    closed = close_batch(stack.db, stack.config, datetime.now(UTC))
    if not isinstance(closed, ClosedBatch):
        raise TypeError(f"no batch closed: {closed.because}")
    report = trainer.step(closed.batch_id)
    if report.version is None:
        raise ValueError(f"the batch was skipped: {report.reason}")
    advance(stack.db, stack.config, datetime.now(UTC), asked=True)
    version = report.version
    stack.wait(lambda: first_token(users, version) > 0, f"an answer of version {version}")
    return first_token(users, version) - began


def _score(stack: Stack, size: int) -> bool:
    """Scores a batch of turns of the live version, once that many are there."""
    with stack.db.begin() as connection:
        turns = list(connection.scalars(_TAKEN, {"live": stack.live(), "size": size}))
        if len(turns) < size:
            return False
        for index, turn in enumerate(turns):
            score = Score(1.0 if index % 2 else -1.0, "majority")
            scores.record(connection, turn, "bench", "bench", score, injection_suspected=False)
        connection.execute(_MOVED, {"turns": turns})
    return True
