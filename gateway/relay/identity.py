"""Who is speaking: the session, turn and request ids that a client states. Pure.

The spellings of a session id, in the order in which they win, are those that clients use in the field.
Where none is there the drainer decides by lineage.
"""

import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Headers = Mapping[str, str]

#: Fields of the body that are Dukou's own, the twins of its headers: never forwarded.
TWINS = ("session_id", "turn_type", "session_done")
#: Request headers that identity or the recognition of retries needs: recorded. No credential is among them.
RECORDED = frozenset(
    {
        "user-agent", "x-request-id", "x-client-request-id", "x-stainless-retry-count", "idempotency-key",
        "traceparent", "x-turn-type", "x-session-done", "x-parent-turn-id", "x-litellm-trace-id",
        "session_id", "conversation_id",
    }
)  # fmt: skip
_VENDOR_SESSION = re.compile(r"x-[a-z0-9-]+-session-id")
_CLAUDE_USER = re.compile(r"_session_([A-Za-z0-9-]+)")
_SESSION_PATH = re.compile(r"/sessions/([^/]+)(/v1(?:/.*)?)")
_TRUE = frozenset({"1", "true", "yes", "on"})
_LONGEST_ID = 256


@dataclass(frozen=True, slots=True)
class Session:
    id: str
    source: str  # path, a header's name, or body:<field>


@dataclass(frozen=True, slots=True)
class Identity:
    session: Session | None
    turn_type: str | None  # main | side
    session_done: bool
    parent: str | None  # turn id, 32 hex digits


UNKNOWN = Identity(session=None, turn_type=None, session_done=False, parent=None)


def new_turn_id(now_ns: int | None = None) -> str:
    """A UUIDv7 as 32 hex digits: sorts by time, and has the fixed length that aborting by rid needs."""
    milliseconds = (time.time_ns() if now_ns is None else now_ns) // 1_000_000
    random = int.from_bytes(os.urandom(10))
    value = (milliseconds & (1 << 48) - 1) << 80 | 0x7 << 76 | (random >> 68) << 64
    value |= 0b10 << 62 | random & (1 << 62) - 1
    return f"{value:032x}"


def split_path(path: str) -> tuple[str, str | None]:
    """`/sessions/{id}/v1/…` → the path behind the id, and the id."""
    match = _SESSION_PATH.fullmatch(path) if path.startswith("/sessions/") else None
    return (match[2], match[1]) if match else (path, None)


def identify(path_session: str | None, headers: Headers, body: Mapping[str, Any]) -> Identity:
    """What the client states of itself, in header and body; a header wins over its twin."""
    turn_type = str(headers.get("x-turn-type") or body.get("turn_type") or "").strip().lower()
    done = str(headers.get("x-session-done") or body.get("session_done") or "").strip().lower()
    parent = headers.get("x-parent-turn-id", "").replace("-", "").lower()
    return Identity(
        session=_session(path_session, headers, body),
        turn_type=turn_type if turn_type in ("main", "side") else None,
        session_done=done in _TRUE,
        parent=parent if re.fullmatch(r"[0-9a-f]{32}", parent) else None,
    )


def recorded_headers(headers: Headers) -> dict[str, str]:
    """The headers that go into the request record."""
    return {
        name: value for name, value in headers.items() if name in RECORDED or name.endswith("-session-id")
    }


def _session(path_session: str | None, headers: Headers, body: Mapping[str, Any]) -> Session | None:
    for source, value in _spellings(path_session, headers, body):
        text = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
        if 0 < len(text) <= _LONGEST_ID and text.isprintable():
            return Session(text, source)
    return None


def _spellings(
    path_session: str | None, headers: Headers, body: Mapping[str, Any]
) -> Iterator[tuple[str, object]]:
    yield "path", path_session
    for name in ("x-session-id", "x-litellm-session-id", "x-litellm-trace-id"):
        yield name, headers.get(name)
    for name in headers:
        if name.endswith("-session-id") and _VENDOR_SESSION.fullmatch(name):
            yield name, headers[name]
    if "codex" in headers.get("user-agent", "").lower():
        yield "session_id", headers.get("session_id")
        yield "conversation_id", headers.get("conversation_id")
    yield "body:session_id", body.get("session_id")
    metadata = body.get("metadata")
    if isinstance(metadata, dict):
        yield "body:metadata.session_id", metadata.get("session_id")
        user = _CLAUDE_USER.search(str(metadata.get("user_id") or ""))
        yield "body:metadata.user_id", user and user[1]
    yield "body:previous_response_id", body.get("previous_response_id")
    yield "body:prompt_cache_key", body.get("prompt_cache_key")
