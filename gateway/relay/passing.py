"""Passes an engine's reply on to the client as it comes, and keeps a copy of it.

What this returns is the turn's ending: its last bytes go out only after the turn is recorded.
"""

import contextlib
import time
from collections.abc import Callable

import orjson

from gateway.relay import errors
from gateway.relay.capture import CHAT, COMPLETIONS
from gateway.relay.client import NO_BUFFERING, Client
from gateway.relay.connection import Headers, header
from gateway.relay.ending import Ending
from gateway.relay.errors import GatewayError, UpstreamClosedError, UpstreamError
from gateway.relay.filter import DONE, Cuts, StreamFilter, filter_body
from gateway.relay.upstream import Reply

#: Reply headers that end at this hop, or that Dukou or its server writes itself.
_NOT_PASSED = frozenset(
    {
        b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"content-encoding", b"te",
        b"trailer", b"upgrade", b"proxy-authenticate", b"date", b"server", b"set-cookie", b"x-request-id",
        b"cache-control", b"x-accel-buffering",
    }
)  # fmt: skip
_TOLD_WITH_ERRORS = frozenset({b"retry-after", b"retry-after-ms", b"x-should-retry"})


class Answer:
    """The answer to one request, whatever number of engines it takes to get one."""

    def __init__(self, client: Client, path: str, begun: Callable[[], None]) -> None:
        """`begun` is called when the first bytes of an answer have come."""
        self.raw: list[bytes] = []  # the engine's bytes, unfiltered
        self.first_byte_ns: int | None = None
        self.ids_seen = False
        self._client = client
        self._begun = begun
        self._understood = path in (CHAT, COMPLETIONS)

    async def pass_on(self, reply: Reply, cuts: Cuts, choices: int, stalled: Callable[[], None]) -> Ending:
        """Passes `reply` on; calls `stalled` when the client stops reading.

        Raises:
            GatewayError: the engine refused, failed, or stopped before the answer was whole.
        """
        if reply.status >= 400:
            raise _refusal(reply, await self._whole(reply))
        headers = [pair for pair in reply.headers if _passes(pair[0])]
        if not header(reply.headers, b"content-type").startswith(b"text/event-stream"):
            return await self._body(reply, cuts, headers)
        headers += NO_BUFFERING
        if self._understood:
            return await self._events(reply, StreamFilter(cuts, choices), headers, stalled)
        while data := await self._next(reply):
            await self._send(reply, headers, data, stalled)
        return self._end("ok", reply, headers)

    async def _body(self, reply: Reply, cuts: Cuts, headers: Headers) -> Ending:
        body = await self._whole(reply)
        if self._understood:
            if b'"choices"' not in body:
                _check_for_error(body)
            self.ids_seen = b'token_ids"' in body
            body = filter_body(body, cuts)
        return self._end("ok", reply, [*headers, (b"content-length", b"%d" % len(body))], body)

    async def _events(
        self, reply: Reply, events: StreamFilter, headers: Headers, stalled: Callable[[], None]
    ) -> Ending:
        shown, failure = b"", None
        try:
            while data := await self._next(reply):
                shown = events.feed(data)
                if events.done or events.error is not None:
                    break
                if shown:
                    await self._send(reply, headers, shown, stalled)
            else:
                shown = events.end()
        except UpstreamError as error:
            shown, failure = events.end(), error
        self.ids_seen = events.ids_seen
        problem = events.error or (None if events.done or events.finished else failure or self._too_early())
        if problem is None:
            reply.skip_rest()
            return self._end("ok" if events.finished else "truncated", reply, headers, shown + DONE)
        if shown:
            await self._send(reply, headers, shown, stalled)
        raise problem

    def _too_early(self) -> GatewayError:
        # A clean end without a finish_reason looks like a finished stream to the openai client.
        return UpstreamClosedError("the engine ended its answer too early", reset=self.first_byte_ns is None)

    async def _send(self, reply: Reply, headers: Headers, data: bytes, stalled: Callable[[], None]) -> None:
        client = self._client
        if client.gone is None:
            await client.begin(reply.status, headers)
            await client.send(data)
            if client.gone is not None:
                stalled()

    def _end(self, outcome: str, reply: Reply, headers: Headers, last: bytes = b"") -> Ending:
        return Ending(outcome, reply.status, headers, last)

    async def _whole(self, reply: Reply) -> bytes:
        while await self._next(reply):
            pass
        return b"".join(self.raw)

    async def _next(self, reply: Reply) -> bytes:
        data = await reply.read()
        if data:
            if self.first_byte_ns is None:
                self.first_byte_ns = time.time_ns()
                self._begun()
            self.raw.append(data)
        return data


def _passes(name: bytes) -> bool:
    return name not in _NOT_PASSED and not name.startswith(b"access-control-")


def _refusal(reply: Reply, body: bytes) -> GatewayError:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        parsed = body.decode(errors="replace")[:1000] or None
    error = errors.from_upstream(reply.status, parsed)
    error.headers = tuple(
        pair for pair in reply.headers if pair[0] in _TOLD_WITH_ERRORS or pair[0].startswith(b"x-ratelimit-")
    )
    return error


def _check_for_error(body: bytes) -> None:
    """Raises where an engine put an error into a 200."""
    with contextlib.suppress(orjson.JSONDecodeError):
        payload = orjson.loads(body)
        if isinstance(payload, dict) and (payload.get("error") or payload.get("object") == "error"):
            raise errors.from_upstream(errors.status_in(payload), payload)
