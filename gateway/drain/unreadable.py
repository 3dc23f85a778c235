"""The row of a request whose records cannot be made into a turn: it says that there was one, and why. Pure.

It keeps what needs no understanding: the time, the outcome, the client's bytes. Its records are kept too
(`dukou/store/set_aside.py`), so that a later version can read them.
"""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from dukou.store.body import Body, Piece
from dukou.store.turn_rows import TurnRow
from gateway.drain.assemble import Draft
from gateway.lineage.place import TurnRequest
from gateway.parse.text import Marker
from gateway.spool.format import Record
from gateway.spool.records import Remains

REASON = "unreadable"  # of `dukou.store.states.REASONS`
_STATUSES = frozenset({"ok", "truncated", "upstream_error", "client_disconnect", "rejected"})
_EARLIEST = datetime(2020, 1, 1, tzinfo=UTC)
_AHEAD = timedelta(days=1)  # by which a gateway's clock may be wrong


def time_of(turn_id: object, now: datetime) -> datetime | None:
    """When the request of a plausible turn id came; None where no gateway of ours made the id."""
    try:
        known = UUID(str(turn_id))
    except ValueError:
        return None
    seconds = (known.int >> 80) / 1000
    if known.version != 7 or not _EARLIEST.timestamp() <= seconds <= (now + _AHEAD).timestamp():
        return None
    return datetime.fromtimestamp(seconds, UTC)


def draft_of(
    request: Record, reply: Record | None, error: str, policy_id: int | None, now: datetime
) -> Draft | None:
    """The least that can be told of a request; None where its id is none of ours."""
    started_at = time_of(request.meta.get("id"), now)
    if started_at is None:
        return None
    turn_id = UUID(str(request.meta["id"]))
    known = Remains.of(request, reply)
    tenant, key_id = _marked(known.tenant) or "default", _marked(known.key_id)
    row = TurnRow(
        id=turn_id,
        request_id=turn_id,
        tenant=tenant,
        key_id=key_id,
        policy_id=policy_id,
        kind="side",
        kind_reason=REASON,
        endpoint=_marked(known.path) or "unknown",
        stream=known.stream,
        engine=_marked(known.engine),
        status=known.outcome if known.outcome in _STATUSES else "interrupted",
        error=error,
        http_status=known.http_status,
        body=Body(Piece(request.body)),
        untrainable_reason=REASON,
        started_at=started_at,
    )
    turn_request = TurnRequest(id=turn_id, tenant=tenant, key_id=key_id, started_at=started_at, kind="side")
    return Draft(turn_request, (row,), message_count=0, session_done=False)


def _marked(value: str | None) -> str | None:
    """A text that Postgres takes; None where there is none."""
    return Marker().text(value) if value else None
