"""The row of a request whose records cannot be made into a turn: it says that there was one, and why. Pure.

It keeps what needs no understanding: the time, the outcome, the client's bytes. Its records are kept too
(`store/set_aside.py`), so that a later version can read them.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from gateway.drain.assemble import Draft
from gateway.fold.readable import Marker
from gateway.lineage.decide import Asked
from gateway.spool.format import Record
from store.body import Body, Piece
from store.turns import Recorded

REASON = "unreadable"  # of `store.stages.REASONS`
_STATUSES = frozenset({"ok", "truncated", "upstream_error", "client_disconnect", "rejected"})
_EARLIEST = datetime(2020, 1, 1, tzinfo=UTC)
_AHEAD = timedelta(days=1)  # by which a gateway's clock may be wrong
_INT4 = range(-(2**31), 2**31)


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
    meta, outcome = _Meta(request.meta), _Meta(reply.meta if reply is not None else {})
    tenant, key_id = meta.text("tenant") or "default", meta.text("key_id")
    asked = Asked(
        id=turn_id,
        tenant=tenant,
        key_id=key_id,
        user_name=None,
        started_at=started_at,
        kind="side",
        session=None,
        parent_id=None,
        prefixes=(),
        messages=(),
        prompt_hash=None,
        attempt=0,
        idempotency_key=None,
        openings=(),
    )
    row = Recorded(
        id=turn_id,
        request_id=turn_id,
        choice_index=0,
        tenant=tenant,
        key_id=key_id,
        user_name=None,
        policy_id=policy_id,
        policy_version_min=None,
        policy_version_max=None,
        kind="side",
        kind_reason=REASON,
        endpoint=meta.text("path") or "unknown",
        stream=request.meta.get("stream") is True,
        model=None,
        engine=outcome.text("engine") or meta.text("engine"),
        status=outcome.status(),
        error=error,
        http_status=outcome.number("http_status"),
        body=Body(Piece(request.body)),
        sampling=None,
        response_text=None,
        reasoning_text=None,
        tool_calls=None,
        finish_reason=None,
        matched_stop=None,
        usage=None,
        prompt_ids=None,
        response_ids=None,
        response_logprobs=None,
        capture="none",
        sampling_class=None,
        temperature=None,
        untrainable_reason=REASON,
        text_altered=False,
        history_hash=None,
        prompt_hash=None,
        exchange_hash=None,
        client_request_id=None,
        started_at=started_at,
        first_token_at=None,
        finished_at=None,
    )
    return Draft(asked, (row,), 0, False)


class _Meta:
    """A record's meta, of whose values nothing is taken for granted."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        return Marker().text(value) if isinstance(value, str) and value else None

    def number(self, name: str) -> int | None:
        value = self._values.get(name)
        return value if type(value) is int and value in _INT4 else None

    def status(self) -> str:
        outcome = self._values.get("outcome")
        return outcome if isinstance(outcome, str) and outcome in _STATUSES else "interrupted"
