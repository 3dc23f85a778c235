"""What a worker tells the drainer: a request, its reply, and feedback. Pure.

Each has a meta object (JSON) and a body of raw bytes, as `gateway.spool.format` lays them on disk. The keys
of the meta are the fields' names. Decoding ignores keys that it does not know, which a later version wrote,
and fills in those that an earlier version did not write.

Where a wrong type never did harm, it still does none: `tenant`, `path`, `outcome` and the values of `headers`
count by their text, `stream` and `session_done` by their truth; a `turn_type`, an `adapter`, a version and
the engine's defaults of another type count as missing. `engine` and `http_status` go into the turn's row as
they are: a wrong type is found when the row is written.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import orjson

from dukou.errors import DukouError
from gateway.spool.format import Kind, Record

_T = TypeVar("_T")
_MISSING = object()
_INT4 = range(-(2**31), 2**31)  # integers that the column takes


class RecordError(DukouError, ValueError):
    """A record lacks a field, or has a value of the wrong type in it; the message names the field."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        found = "nothing" if value is _MISSING else f"a {type(value).__name__}"
        super().__init__(f"{name}: {found} where {expected} is needed")
        self.field = name


@dataclass(frozen=True, slots=True)
class StatedSession:
    """A session id that a client gave, and where: `path`, a header's name, or `body:<field>`."""

    id: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """A client's request, written before an engine is asked."""

    id: str  # the turn's: a UUIDv7 as 32 hex digits
    at_ns: int  # when it came, in nanoseconds since 1970
    tenant: str
    path: str  # with a session in front and a query behind, where the client sent them
    body: bytes  # the client's own
    key_id: str | None = None
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)  # lower-case names; never credentials
    session: StatedSession | None = None
    turn_type: str | None = None  # `main` or `side`, where the client said so
    session_done: bool = False  # the client says that this is the session's last turn
    parent: str | None = None  # a turn id that the client named
    engine: str | None = None  # URL of the first engine that was chosen
    added: tuple[str, ...] = ()  # fields that Dukou asked the engine for
    stream: bool = False

    def encode(self) -> Record:
        session = None if self.session is None else {"id": self.session.id, "source": self.session.source}
        meta = _meta(self) | {"headers": dict(self.headers), "session": session, "added": list(self.added)}
        return Record(Kind.REQUEST, meta, self.body)

    @classmethod
    def decode(cls, record: Record) -> "RequestRecord":
        """Raises RecordError."""
        meta = record.meta
        added = meta.get("added")
        return cls(
            id=_required_text(meta, "id"),
            at_ns=_required_time(meta, "at_ns"),
            tenant=str(_required(meta, "tenant")),
            path=str(_required(meta, "path")),
            body=record.body,
            key_id=_text(meta, "key_id"),
            method=str(meta.get("method", "POST")),
            headers=_headers(meta),
            session=_session(meta),
            turn_type=_known(meta, "turn_type", str),
            session_done=bool(meta.get("session_done")),
            parent=_text_if_any(meta, "parent"),
            engine=meta.get("engine"),
            added=tuple([str(name) for name in added]) if isinstance(added, list) else (),
            stream=bool(meta.get("stream")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyRecord:
    """How a request ended. With the defaults: its worker died before it did."""

    id: str  # the request's
    #: ok | truncated | upstream_error | client_disconnect | rejected | interrupted
    outcome: str = "interrupted"
    body: bytes = b""  # the upstream's, unfiltered
    http_status: int | None = None
    first_byte_ns: int | None = None  # nanoseconds since 1970, and so is the next
    finished_ns: int | None = None
    version_min: int | None = None  # of the policy, while the answer was made; None: unknown
    version_max: int | None = None
    engine: str | None = None  # URL of the engine that answered
    adapter: str | None = None  # its name carries the version exactly
    sampling_defaults: Mapping[str, Any] | None = None  # of that engine; None: unknown
    tool_calling: Mapping[str, Any] | None = None  # `{"parser": …, "grammar": …}` of that engine; likewise
    error: str | None = None

    def encode(self) -> Record:
        return Record(Kind.REPLY, _meta(self), self.body)

    @classmethod
    def decode(cls, record: Record) -> "ReplyRecord":
        """Raises RecordError."""
        meta = record.meta
        return cls(
            id=_required_text(meta, "id"),
            outcome=str(meta.get("outcome", "interrupted")),
            body=record.body,
            http_status=meta.get("http_status"),
            first_byte_ns=_time_if_any(meta, "first_byte_ns"),
            finished_ns=_time_if_any(meta, "finished_ns"),
            version_min=_known(meta, "version_min", int),
            version_max=_known(meta, "version_max", int),
            engine=meta.get("engine"),
            adapter=_known(meta, "adapter", str),
            sampling_defaults=_known(meta, "sampling_defaults", dict),
            tool_calling=_known(meta, "tool_calling", dict),
            error=_error(meta),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackRecord:
    """What a person or the environment says of a turn, or of a session: its last main turn before."""

    id: str  # a UUID as 32 hex digits; the same for the same idempotency key
    at_ns: int  # when it came, in nanoseconds since 1970
    tenant: str
    key_id: str | None = None
    # These are the body.
    turn_id: str | None = None
    session_id: str | None = None
    choice_index: int = 0
    rating: int | None = None  # -1, 0, 1
    score: float | None = None  # in [-1, 1]
    comment: str | None = None
    correction: str | None = None
    outcome: Mapping[str, Any] | None = None  # `{"success": bool, …}`
    user: str | None = None  # who rates

    def encode(self) -> Record:
        every = _meta(self)
        meta = {name: every.pop(name) for name in ("id", "at_ns", "tenant", "key_id")}
        said = {name: value for name, value in every.items() if value is not None}
        return Record(Kind.FEEDBACK, meta, orjson.dumps(said))

    @classmethod
    def decode(cls, record: Record) -> "FeedbackRecord":
        """Raises RecordError."""
        meta, said = record.meta, _object(record.body)
        return cls(
            id=_required_text(meta, "id"),
            at_ns=_required_time(meta, "at_ns"),
            tenant=str(_required(meta, "tenant")),
            key_id=_text(meta, "key_id"),
            turn_id=_text(said, "turn_id"),
            session_id=_text(said, "session_id"),
            choice_index=_integer(said, "choice_index") or 0,
            rating=_integer(said, "rating"),
            score=_of_type(said, "score", (int, float), "a number"),
            comment=_text(said, "comment"),
            correction=_text(said, "correction"),
            outcome=_of_type(said, "outcome", dict, "an object"),
            user=_text(said, "user"),
        )


def decode_turn(request: Record, reply: Record | None) -> tuple[RequestRecord, ReplyRecord]:
    """The records of one turn; without a reply it was interrupted. Raises RecordError."""
    asked = RequestRecord.decode(request)
    return asked, ReplyRecord(id=asked.id) if reply is None else ReplyRecord.decode(reply)


@dataclass(frozen=True, slots=True)
class Remains:
    """What is known of a turn whose records cannot be decoded; what no row can hold counts as missing."""

    tenant: str | None
    key_id: str | None
    path: str | None
    stream: bool
    engine: str | None
    outcome: str | None
    http_status: int | None

    @classmethod
    def of(cls, request: Record, reply: Record | None) -> "Remains":
        asked, answered = request.meta, reply.meta if reply is not None else {}
        status = answered.get("http_status")
        return cls(
            tenant=_known(asked, "tenant", str),
            key_id=_known(asked, "key_id", str),
            path=_known(asked, "path", str),
            stream=asked.get("stream") is True,
            engine=_known(answered, "engine", str) or _known(asked, "engine", str),
            outcome=_known(answered, "outcome", str),
            http_status=status if type(status) is int and status in _INT4 else None,
        )


def _meta(record: RequestRecord | ReplyRecord | FeedbackRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in _NAMES[type(record)]}


_NAMES = {
    kind: tuple(each.name for each in fields(kind) if each.name != "body")
    for kind in (RequestRecord, ReplyRecord, FeedbackRecord)
}


def _required(meta: Mapping[str, Any], name: str) -> Any:
    if name not in meta:
        raise RecordError(name, _MISSING, "a value")
    return meta[name]


def _required_text(meta: Mapping[str, Any], name: str) -> str:
    found = meta.get(name, _MISSING)
    if not isinstance(found, str):
        raise RecordError(name, found, "a text")
    return found


def _required_time(meta: Mapping[str, Any], name: str) -> int:
    """Nanoseconds; a fraction of one is cut off."""
    found = meta.get(name, _MISSING)
    if not isinstance(found, int | float):
        raise RecordError(name, found, "a time in nanoseconds")
    return math.floor(found)


def _time_if_any(meta: Mapping[str, Any], name: str) -> int | None:
    return _required_time(meta, name) if meta.get(name) else None


def _of_type(
    meta: Mapping[str, Any], name: str, kind: type[_T] | tuple[type[_T], ...], expected: str
) -> _T | None:
    found = meta.get(name)
    if found is None or isinstance(found, kind):
        return found
    raise RecordError(name, found, expected)


def _text(meta: Mapping[str, Any], name: str) -> str | None:
    return _of_type(meta, name, str, "a text")


def _text_if_any(meta: Mapping[str, Any], name: str) -> str | None:
    """None for everything that is empty too."""
    return _text(meta, name) if meta.get(name) else None


def _integer(meta: Mapping[str, Any], name: str) -> int | None:
    return _of_type(meta, name, int, "an integer")


def _known(meta: Mapping[str, Any], name: str, kind: type[_T]) -> _T | None:
    """The value, or None where it is of another type."""
    found = meta.get(name)
    return found if isinstance(found, kind) else None


def _error(meta: Mapping[str, Any]) -> str | None:
    """A text or a number; whatever else it is counts as none."""
    found = meta.get("error")
    if isinstance(found, int) and not isinstance(found, bool):
        return str(found)
    return found if isinstance(found, str) and found else None


def _headers(meta: Mapping[str, Any]) -> dict[str, str]:
    found = meta.get("headers") or {}
    if not isinstance(found, dict):
        raise RecordError("headers", found, "an object")
    return {name.lower(): str(value) for name, value in found.items()}


def _session(meta: Mapping[str, Any]) -> StatedSession | None:
    found = meta.get("session")
    if not found:
        return None
    if not isinstance(found, dict):
        raise RecordError("session", found, "an object")
    return StatedSession(str(_required(found, "id")), str(_required(found, "source")))


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        found = _MISSING
    if not isinstance(found, dict):
        raise RecordError("body", found, "a JSON object")
    return found
