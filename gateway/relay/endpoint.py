"""The ASGI endpoint of the relay: reads a request, starts its turn, waits for the client to leave.

No framework is in this path, for speed.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from dukou.errors import DukouError
from gateway.relay import capture, identity
from gateway.relay.client import Client, Inbound, RequestHead, Send
from gateway.relay.errors import MethodNotAllowedError, TooLargeError, UnsupportedEncodingError
from gateway.relay.services import Services
from gateway.relay.turn import Turn
from gateway.relay.upstream import Headers

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Scope = MutableMapping[str, Any]

#: The paths of an engine that clients can reach; the others, such as those that control it, they cannot.
PATHS = frozenset(
    {
        capture.CHAT,
        capture.COMPLETIONS,
        "/v1/embeddings",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/tokenize",
        "/v1/detokenize",
        "/v1/rerank",
        "/v1/score",
        "/v1/classify",
    }
)


class ClientLeftError(DukouError):
    """The client closed the connection before its request was whole."""


class Relay:
    """Serves the paths of PATHS."""

    def __init__(self, services: Services, max_body_bytes: int, write_timeout: float) -> None:
        self._services = services
        self._max_body_bytes = max_body_bytes
        self._write_timeout = write_timeout

    async def serve(self, head: RequestHead, receive: Receive, send: Send, cors: Headers) -> None:
        """Serves one request; returns when its turn is recorded and the client has its last byte.

        Raises:
            GatewayError: the request was refused before it became a turn.
        """
        if head.method != "POST":
            raise MethodNotAllowedError(f"use POST {head.path}", headers=((b"allow", b"POST"),))
        at_ns = time.time_ns()
        try:
            body = await self._read_body(receive, head.headers)
        except ClientLeftError:
            return
        inbound = Inbound(
            id=identity.new_turn_id(at_ns),
            path=head.path,
            path_session=head.path_session,
            headers=head.headers,
            key_id=head.key_id,
            body=body,
            at_ns=at_ns,
        )
        turn = Turn(self._services, inbound, Client(inbound, send, cors, self._write_timeout))
        try:
            # A server says disconnect when the client has left, and also when the response is complete.
            while (await receive())["type"] != "http.disconnect":
                pass
            turn.client_gone()
            await asyncio.shield(turn.task)
        except asyncio.CancelledError:
            turn.client_gone()
            raise

    async def _read_body(self, receive: Receive, headers: dict[str, str]) -> bytes:
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise UnsupportedEncodingError("send the request body uncompressed")
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._max_body_bytes:
            raise self._too_large()
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientLeftError
            part = message.get("body", b"")
            parts.append(part)
            size += len(part)
            if size > self._max_body_bytes:
                raise self._too_large()
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def _too_large(self) -> TooLargeError:
        # Closing saves reading the rest, which may be long.
        words = f"the request body is larger than gateway.max_body_bytes ({self._max_body_bytes})"
        return TooLargeError(words, headers=((b"connection", b"close"),))
