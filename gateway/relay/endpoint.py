"""The hot path: from an ASGI request to a turn, outside any framework's routing."""

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from gateway.relay import capture, identity
from gateway.relay.client import Client, Inbound, Send
from gateway.relay.connection import Headers
from gateway.relay.errors import MethodNotAllowedError, TooLargeError, UnsupportedEncodingError
from gateway.relay.turn import Services, Turn

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Scope = MutableMapping[str, Any]

#: What an engine may be asked for through Dukou. Everything else, its control side above all, is not there.
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


class ClientLeftError(Exception):
    """The client closed the connection before its request was whole."""


class Relay:
    """Serves the paths of PATHS."""

    def __init__(self, services: Services, max_body_bytes: int, write_timeout: float) -> None:
        self._services = services
        self._max_body_bytes = max_body_bytes
        self._write_timeout = write_timeout

    async def serve(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        path: str,
        path_session: str | None,
        headers: dict[str, str],
        key_id: str | None,
        cors: Headers,
    ) -> None:
        """One request, until its turn is recorded and the client has its last byte.

        Raises:
            GatewayError: the request was refused before it became a turn.
        """
        if scope["method"] != "POST":
            raise MethodNotAllowedError(f"use POST {path}", headers=((b"allow", b"POST"),))
        at_ns = time.time_ns()
        try:
            body = await self._read_body(receive, headers)
        except ClientLeftError:
            return
        inbound = Inbound(identity.new_turn_id(at_ns), path, path_session, headers, key_id, body, at_ns)
        turn = Turn(self._services, inbound, Client(inbound, send, cors, self._write_timeout))
        task = turn.start()
        try:
            # A server says disconnect when the client has left, and also when the response is complete.
            while (await receive())["type"] != "http.disconnect":
                pass
            turn.client_gone()
            await asyncio.shield(task)
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
