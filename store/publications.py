"""Publications: each attempt to bring a version to an engine, and what came of it."""

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection

from store.tables import publications


@dataclass(frozen=True, slots=True)
class Publication:
    policy_id: int
    version: int
    engine: str  # URL
    status: Literal["loaded", "failed"]
    error: str | None
    reported_version: str | None  # what the engine itself said afterwards
    probe: dict[str, Any] | None  # {"mean_abs_diff", "max_abs_diff"} in nats, or {"missing": why}
    seconds: float


def insert(connection: Connection, publication: Publication) -> None:
    connection.execute(
        publications.insert().values(
            policy_id=publication.policy_id,
            version=publication.version,
            engine=publication.engine,
            status=publication.status,
            error=publication.error,
            reported_version=publication.reported_version,
            probe=publication.probe,
            seconds=publication.seconds,
        )
    )
