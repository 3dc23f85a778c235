"""The session, kind and parent of a turn, as its client states them. Pure.

Clients state a session in many places; `_session_candidates` has them in order of precedence. Where a client
states none, the drainer finds the session by lineage.

Clients' keys, and what a browser asks before it sends one.
"""

import hmac
import os
import re
import string
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from pydantic import SecretStr

from gateway.relay.errors import UnauthorizedError

Headers = Mapping[str, str]

#: Body fields with the meaning of the x-session-id, x-turn-type and x-session-done headers; not forwarded.
BODY_FIELDS = ("session_id", "turn_type", "session_done")
#: Request headers that are recorded: identity or the recognition of retries needs them. None is a credential.
RECORDED_HEADERS = frozenset(
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
_MAX_ID_LENGTH = 256


@dataclass(frozen=True, slots=True)
class Session:
    """A session that a client states."""

    id: str
    source: str  # path, a header's name, or body:<field>


@dataclass(frozen=True, slots=True)
class Identity:
    """What a client states about one turn; None where it states nothing."""

    session: Session | None
    turn_type: str | None  # main | side
    session_done: bool
    parent: str | None  # turn id, 32 hex digits


UNKNOWN = Identity(session=None, turn_type=None, session_done=False, parent=None)


def new_turn_id(now_ns: int | None = None) -> str:
    """A UUIDv7 as 32 hex digits.

    It sorts by time; its fixed length keeps one id from being the prefix of another, by which SGLang aborts.
    """
    milliseconds = (time.time_ns() if now_ns is None else now_ns) // 1_000_000
    random = int.from_bytes(os.urandom(10))
    value = (milliseconds & (1 << 48) - 1) << 80 | 0x7 << 76 | (random >> 68) << 64
    value |= 0b10 << 62 | random & (1 << 62) - 1
    return f"{value:032x}"


def split_path(path: str) -> tuple[str, str | None]:
    """Splits `/sessions/{id}/v1/…` into the path after the id, and the id; the id is None in other paths."""
    match = _SESSION_PATH.fullmatch(path) if path.startswith("/sessions/") else None
    return (match[2], match[1]) if match else (path, None)


def identify(path_session: str | None, headers: Headers, body: Mapping[str, Any]) -> Identity:
    """Reads what the client states; a header takes precedence over the body field of the same meaning."""
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
        name: value
        for name, value in headers.items()
        if name in RECORDED_HEADERS or name.endswith("-session-id")
    }


def _session(path_session: str | None, headers: Headers, body: Mapping[str, Any]) -> Session | None:
    for source, value in _session_candidates(path_session, headers, body):
        text = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
        if 0 < len(text) <= _MAX_ID_LENGTH and text.isprintable():
            return Session(text, source)
    return None


def _session_candidates(
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


_PREFIX = "sha256:"
#: Paths that answer without a key: a load balancer has none.
OPEN_PATHS = frozenset({"/", "/health", "/healthz", "/readyz"})
METRICS = "/metrics"


def is_open(path: str, scope: Mapping[str, Any], headers: Mapping[str, str]) -> bool:
    """Whether a path answers without a key; the metrics do to this machine, but not through a proxy."""
    if path in OPEN_PATHS:
        return True
    peer = scope.get("client")
    is_here = peer is not None and peer[0] in ("127.0.0.1", "::1")
    return path == METRICS and is_here and not {"x-forwarded-for", "forwarded"} & headers.keys()


class Keys:
    """The known keys, as digests only. Without any, every request is let in."""

    def __init__(self, keys: Iterable[SecretStr]) -> None:
        """Raises ValueError for a `sha256:` entry that is no digest, without repeating it."""
        entries = (part.strip() for key in keys for part in key.get_secret_value().split(","))
        self._digests = tuple(_digest_of(entry) for entry in entries if entry)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def check(self, headers: Mapping[str, str]) -> str | None:
        """The key's id (12 hex digits of its digest) or None where no keys are configured.

        Raises:
            UnauthorizedError: no key, or an unknown one.
        """
        if not self._digests:
            return None
        key = presented(headers)
        if key is None:
            raise UnauthorizedError("no API key: send `Authorization: Bearer <key>`")
        digest = sha256(key.encode()).hexdigest()
        # Every digest is compared, so that the time tells nothing about which one was close.
        if sum(hmac.compare_digest(digest, known) for known in self._digests) == 0:
            raise UnauthorizedError("this API key is not known")
        return digest[:12]


def presented(headers: Mapping[str, str]) -> str | None:
    """The key that a request carries, in either of the two usual headers."""
    scheme, _, token = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("x-api-key", "").strip() or None


def preflight(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """The answer's headers to a browser's OPTIONS, which never carries a key."""
    asked = headers.get("access-control-request-headers", "authorization, content-type, x-api-key")
    return [
        *cors(headers),
        (b"access-control-allow-methods", b"GET, POST, HEAD, OPTIONS"),
        (b"access-control-allow-headers", asked.encode("latin-1")),
        (b"access-control-max-age", b"600"),
    ]


def cors(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """What every answer to another origin carries, refusals too. Keys are no cookies: any origin may ask."""
    if "origin" not in headers:
        return []
    shown = b"x-request-id, x-turn-id, x-session-id, x-policy-version, openai-processing-ms, retry-after"
    return [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", shown)]


def _digest_of(entry: str) -> str:
    if not entry.startswith(_PREFIX):
        return sha256(entry.encode()).hexdigest()
    digest = entry[len(_PREFIX) :].lower()
    if len(digest) != 64 or not set(digest) <= set(string.hexdigits):
        raise ValueError("gateway.keys: `sha256:` needs the 64 hex digits of the key's digest")
    return digest
