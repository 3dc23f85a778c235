"""Passes an engine's reply on to the client as it comes, and keeps a copy of it.

The last bytes are returned and not sent: they go out only after the turn is recorded.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson

from gateway.relay import errors
from gateway.relay.capture import CHAT, COMPLETIONS
from gateway.relay.client import NO_BUFFERING, Client
from gateway.relay.ending import Ending
from gateway.relay.errors import GatewayError, UpstreamClosedError, UpstreamError
from gateway.relay.filter import DONE, Cuts, StreamFilter, filter_body
from gateway.relay.upstream import Reply, header

#: Reply headers that hold for one connection only, or that Dukou or its server writes itself.
_DROPPED_HEADERS = frozenset(
    {
        b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"content-encoding", b"te",
        b"trailer", b"upgrade", b"proxy-authenticate", b"date", b"server", b"set-cookie", b"x-request-id",
        b"cache-control", b"x-accel-buffering",
    }
)  # fmt: skip
#: Reply headers that pass with an error (as do those that begin with x-ratelimit-).
_ERROR_HEADERS = frozenset({b"retry-after", b"retry-after-ms", b"x-should-retry"})


@dataclass(slots=True)
class ReceivedReply:
    """What engines have sent in reply to one turn; recorded whatever becomes of the turn."""

    chunks: list[bytes] = field(default_factory=list)  # unfiltered
    first_byte_ns: int | None = None  # when the first of them came; None: nothing has come

    @property
    def begun(self) -> bool:
        """True once anything has come."""
        return self.first_byte_ns is not None


@dataclass(frozen=True, slots=True)
class RelayResult:
    """A reply that was passed on as far as it goes before the turn is recorded."""

    ending: Ending
    has_token_ids: bool


class ReplyRelay:
    """Passes one reply on to one client."""

    def __init__(
        self,
        reply: Reply,
        client: Client,
        received: ReceivedReply,
        *,
        on_first_byte: Callable[[], None],
        on_stall: Callable[[], None],
    ) -> None:
        """Adds what comes to `received`. `on_stall` is called when the client no longer reads."""
        self._reply = reply
        self._client = client
        self._received = received
        self._on_first_byte = on_first_byte
        self._on_stall = on_stall
        self._headers = [pair for pair in reply.headers if _passes(pair[0])]

    async def pass_on(self, path: str, cuts: Cuts, choices: int) -> RelayResult:
        """Passes the reply to a request for `path` on, without what `cuts` names.

        `choices`: the number of answers that were asked for.

        Raises:
            GatewayError: the engine refused, failed, or stopped before the reply was whole.
        """
        reply = self._reply
        if reply.status >= 400:
            raise _refusal(reply, await self._read_whole())
        is_filtered = path in (CHAT, COMPLETIONS)
        if not header(reply.headers, b"content-type").startswith(b"text/event-stream"):
            return await self._pass_body(cuts if is_filtered else None)
        self._headers += NO_BUFFERING
        if is_filtered:
            return await self._pass_events(StreamFilter(cuts, choices))
        while data := await self._read():
            await self._send(data)
        return self._result("ok")

    async def _pass_body(self, cuts: Cuts | None) -> RelayResult:
        """Takes a whole body; `cuts` is None where it passes unread."""
        body, has_token_ids = await self._read_whole(), False
        if cuts is not None:
            if b'"choices"' not in body:
                _check_for_error(body)
            has_token_ids = b'token_ids"' in body
            body = filter_body(body, cuts)
        self._headers.append((b"content-length", b"%d" % len(body)))
        return self._result("ok", body, has_token_ids=has_token_ids)

    async def _pass_events(self, events: StreamFilter) -> RelayResult:
        shown, failure = b"", None
        try:
            while data := await self._read():
                shown = events.feed(data)
                if events.done or events.error is not None:
                    break
                if shown:
                    await self._send(shown)
            else:
                shown = events.end()
        except UpstreamError as error:
            shown, failure = events.end(), error
        problem = events.error or (None if events.done or events.finished else failure or self._too_early())
        if problem is None:
            self._reply.skip_rest()
            outcome = "ok" if events.finished else "truncated"
            return self._result(outcome, shown + DONE, has_token_ids=events.ids_seen)
        if shown:
            await self._send(shown)
        raise problem

    def _too_early(self) -> GatewayError:
        # A clean end without a finish_reason looks like a finished stream to the openai client.
        return UpstreamClosedError("the engine ended its answer too early", reset=not self._received.begun)

    async def _send(self, data: bytes) -> None:
        client = self._client
        if client.gone is None:
            await client.begin(self._reply.status, self._headers)
            await client.send(data)
            if client.gone is not None:
                self._on_stall()

    def _result(self, outcome: str, last: bytes = b"", *, has_token_ids: bool = False) -> RelayResult:
        return RelayResult(Ending(outcome, self._reply.status, self._headers, last), has_token_ids)

    async def _read_whole(self) -> bytes:
        while await self._read():
            pass
        return b"".join(self._received.chunks)

    async def _read(self) -> bytes:
        data = await self._reply.read()
        if data:
            received = self._received
            if received.first_byte_ns is None:
                received.first_byte_ns = time.time_ns()
                self._on_first_byte()
            received.chunks.append(data)
        return data


def _passes(name: bytes) -> bool:
    return name not in _DROPPED_HEADERS and not name.startswith(b"access-control-")


def _refusal(reply: Reply, body: bytes) -> GatewayError:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        parsed = body.decode(errors="replace")[:1000] or None
    error = errors.from_upstream(reply.status, parsed)
    error.headers = tuple(
        pair for pair in reply.headers if pair[0] in _ERROR_HEADERS or pair[0].startswith(b"x-ratelimit-")
    )
    return error


def _check_for_error(body: bytes) -> None:
    """Raises GatewayError where an engine put an error into a reply of status 200."""
    with contextlib.suppress(orjson.JSONDecodeError):
        payload = orjson.loads(body)
        if isinstance(payload, dict) and (payload.get("error") or payload.get("object") == "error"):
            raise errors.from_upstream(errors.status_in(payload), payload)
