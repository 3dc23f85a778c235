"""Clients' keys, and what a browser asks before it sends one."""

import hmac
import string
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

from pydantic import SecretStr

from gateway.relay.errors import UnauthorizedError

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
