"""Optimizer steps: which batch made which version, and the checkpoint to go on from."""

from dataclasses import dataclass
from typing import TypeAlias

from sqlalchemy import Connection, func, select

from store.tables import steps, versions

#: `steps.metrics`: what a step measured, by name (docs/training.md); None where there was nothing to measure.
Metrics: TypeAlias = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class NewStep:
    batch_id: int
    policy_id: int
    number: int  # optimizer steps of this policy, from 1
    version: int
    checkpoint: str
    metrics: Metrics
    seconds: float


def insert(connection: Connection, step: NewStep) -> None:
    connection.execute(
        steps.insert().values(
            batch_id=step.batch_id,
            policy_id=step.policy_id,
            number=step.number,
            version=step.version,
            checkpoint=step.checkpoint,
            metrics=step.metrics,
            seconds=step.seconds,
        )
    )


def exists(connection: Connection, batch_id: int) -> bool:
    return connection.scalar(select(func.count()).where(steps.c.batch_id == batch_id)) == 1


def metrics(connection: Connection, policy_id: int, count: int, *, newest: bool) -> list[Metrics]:
    """The metrics of a policy's first or newest steps, oldest first."""
    number = steps.c.number
    query = (
        select(steps.c.metrics)
        .where(steps.c.policy_id == policy_id)
        .order_by(number.desc() if newest else number)
        .limit(count)
    )
    found = list(connection.scalars(query))
    return found[::-1] if newest else found


def measured(connection: Connection, policy_id: int, version: int) -> Metrics:
    """The metrics of the step that made a version; empty where no step did."""
    query = select(steps.c.metrics).where(steps.c.policy_id == policy_id, steps.c.version == version)
    found: Metrics | None = connection.scalar(query)
    return found or {}


def next_number(connection: Connection, policy_id: int) -> int:
    """One more than the newest step's number."""
    newest = connection.scalar(select(func.max(steps.c.number)).where(steps.c.policy_id == policy_id))
    return (newest or 0) + 1


def number_of(connection: Connection, policy_id: int, version: int) -> int | None:
    """The number of the step that made a version; None for the base model."""
    query = select(steps.c.number).where(steps.c.policy_id == policy_id, steps.c.version == version)
    found: int | None = connection.scalar(query)
    return found


def head(connection: Connection, policy_id: int, live_version: int) -> int:
    """The version that training goes on from.

    The live one; or, where steps were made and not published yet, the newest that follows from it through
    versions that never were live. What was live once and is not any more was rolled back, and stays behind.
    """
    table = versions.c
    query = select(table.version, table.parent).where(
        table.policy_id == policy_id,
        table.version > live_version,
        table.status == "written",
        table.live_at.is_(None),
    )
    newest = live_version
    line = {live_version}
    for version, parent in connection.execute(query.order_by(table.version)):
        if parent in line:
            line.add(version)
            newest = version
    return newest
