"""Sessions that stay on the version they began with, for a while."""

from sqlalchemy import Connection, Interval, cast, func, literal, select

from store import versions
from store.tables import sessions, turns
from store.tables import versions as version_rows

#: Sources of an id that only the drainer knows: a worker cannot tell such a session when a request comes.
_FOUND_LATER = ("lineage", "new")


def begun_with(connection: Connection, policy_id: int, live_version: int, seconds: float) -> dict[str, int]:
    """Session (`session_key`) → the version of its first turn, for sessions younger than `seconds`.

    Only versions that the live one follows from: no session stays on what was rolled back or refused.
    """
    kept = set(versions.ancestors(connection, policy_id, live_version)[1:])
    if not kept:
        return {}
    first = (
        select(turns.c.policy_version_max.label("version"))
        .where(
            turns.c.tenant == sessions.c.tenant,
            turns.c.session_id == sessions.c.id,
            turns.c.policy_id == policy_id,
        )
        .order_by(turns.c.started_at)
        .limit(1)
        .lateral("first")
    )
    query = (
        select(sessions.c.tenant, sessions.c.id, first.c.version)
        .select_from(sessions)
        .join(first, literal(True))
        .join(version_rows, version_rows.c.version == first.c.version)
        .where(
            version_rows.c.policy_id == policy_id,
            version_rows.c.status != "refused",
            first.c.version.in_(kept),
            sessions.c.created_at > func.now() - cast(literal(f"{seconds} seconds"), Interval),
            sessions.c.done_at.is_(None),
            sessions.c.source.not_in(_FOUND_LATER),
        )
    )
    rows = connection.execute(query)
    return {session_key(tenant, session_id): version for tenant, session_id, version in rows}


def session_key(tenant: str, session_id: str) -> str:
    """How a session is written in the routes file."""
    return f"{tenant}/{session_id}"
