"""A small HTTP/1.1 client for the request path: one pool of kept-alive connections per engine.

A general client takes several times as long as the rest of the relay.

One HTTP/1.1 connection to an engine: an asyncio.Protocol on httptools, a reply at a time.

Back-pressure is kept end to end: while nobody reads a reply, its socket is not read either.
"""

import asyncio
import ssl
import zlib
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, cast
from urllib.parse import urlsplit

import httptools

from gateway.relay import routing
from gateway.relay.errors import (
    UpstreamClosedError,
    UpstreamConnectError,
    UpstreamError,
    UpstreamTimeoutError,
)

Headers = list[tuple[bytes, bytes]]

_HIGH_WATER = 256 * 1024  # bytes of a reply that wait for their reader before the socket is paused


def header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    """The value of a header by its lower-case name, b"" where it is not there."""
    return next((value for key, value in headers if key == name), b"")


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    headers: Headers
    body: bytes = b""


class Keeper(Protocol):
    """Who has a connection between two replies."""

    def keep(self, connection: "Connection") -> None: ...

    def forget(self, connection: "Connection") -> None: ...


class Connection(asyncio.Protocol):
    """One connection, one exchange at a time."""

    def __init__(self, pool: Keeper) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._sent_at: float | None = None  # on the loop's clock; None: nothing of the request was written
        self.lost_after: float | None = None  # seconds from the request's first byte to the connection's end
        self._reset()

    def _reset(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._paused = False
        self._decoder: zlib._Decompress | None = None
        self._sized = False  # the reply says itself where it ends
        self.status = 0
        self.headers: Headers = []
        self.received = False  # any byte of a reply
        self.headed = False
        self.complete = False
        self._kept_alive = False
        self._finishing: asyncio.TimerHandle | None = None

    # What the transport calls.
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.received = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, zlib.error) as error:
            self._fail(UpstreamClosedError(f"the engine's answer is not HTTP: {error}", reset=True))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.forget(self)
        self._transport = None
        if self._sent_at is not None:
            self.lost_after = asyncio.get_running_loop().time() - self._sent_at
        if self.complete or self._error is not None:
            return
        if self.headed and not self._sized and exc is None:
            self.complete = True  # without a length, the end of the connection is the end of the body
        else:
            words = "broke" if exc else "closed"
            self._error = UpstreamClosedError(
                f"the engine {words} the connection ({type(exc).__name__ if exc else 'end of stream'})",
                reset=exc is not None,
            )
        self._wake()

    # What the parser calls.
    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self.headers.append((name, value))
        if name in (b"content-length", b"transfer-encoding"):
            self._sized = True
        elif name == b"content-encoding" and value.lower() in (b"gzip", b"deflate"):
            self._decoder = zlib.decompressobj(zlib.MAX_WBITS | 32)

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status < 200:  # an interim answer: the real one follows
            self.headers = []
            return
        self.headed = True
        self._wake()

    def on_body(self, body: bytes) -> None:
        if self._decoder is not None:
            body = self._decoder.decompress(body)
        self._chunks.append(body)
        self._buffered += len(body)
        if self._buffered > _HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        if self.headed:
            self._kept_alive = self._parser.should_keep_alive()  # the parser forgets it after this call
            self.complete = True
            self._wake()
            if self._finishing is not None:
                self._finishing.cancel()
                self.release()

    # What the pool and the relay call.
    def start(self, request: Request, host: str) -> None:
        """Sends a request. Raises UpstreamClosedError where the connection has just gone."""
        if self._transport is None:
            self.lost_after = None
            raise UpstreamClosedError("the engine closed the connection (idle)", reset=False)
        self._reset()
        self._sent_at = asyncio.get_running_loop().time()
        lines = [f"{request.method} {request.path} HTTP/1.1\r\nhost: {host}\r\n".encode("latin-1")]
        lines += [b"%b: %b\r\n" % header for header in request.headers]
        lines.append(b"accept-encoding: identity\r\ncontent-length: %d\r\n\r\n" % len(request.body))
        self._transport.write(b"".join((*lines, request.body)))

    async def head(self, idle_timeout: float) -> None:
        """Waits for status and headers. Raises UpstreamClosedError, UpstreamTimeoutError."""
        while not self.headed:
            await self._wait(idle_timeout)

    async def read(self, idle_timeout: float) -> bytes:
        """The next bytes of the body, as they came; b"" at its end.

        Raises:
            UpstreamClosedError: the connection ended inside the body.
            UpstreamTimeoutError: nothing came for `idle_timeout` seconds.
        """
        while not self._chunks:
            if self.complete:
                return b""
            await self._wait(idle_timeout)
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks, self._buffered = [], 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    def release(self) -> None:
        """Gives the connection back to its pool, or closes it where the exchange is not over."""
        if self._kept_alive and self._transport is not None:
            self._pool.keep(self)
        else:
            self.close()

    def finish(self, seconds: float) -> None:
        """Like release, for an exchange whose end is all that is missing: it may come for `seconds` more."""
        if self.complete or self._transport is None:
            self.release()
        else:
            self._finishing = asyncio.get_running_loop().call_later(seconds, self.close)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self, idle_timeout: float) -> None:
        if self._error is not None:
            raise self._error
        loop = asyncio.get_running_loop()
        self._waiter = waiter = loop.create_future()
        timer = loop.call_later(idle_timeout, self._silent, idle_timeout)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiter = None
        if self._error is not None and not self._chunks and not self.complete:
            raise self._error

    def _silent(self, seconds: float) -> None:
        self._fail(UpstreamTimeoutError(f"the engine sent nothing for {seconds:g} s (UpstreamTimeoutError)"))

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self.close()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


_FINISH_SECONDS = 1.0  # for the end of a reply whose rest is skipped
_MAX_IDLE = 256  # idle connections per engine
_PING_SECONDS = 2.0  # to connect to an engine that may be gone, and then again for its answer


class Pool:
    """Connections to one engine."""

    def __init__(self, url: str, connect_timeout: float, idle_timeout: float) -> None:
        parts = urlsplit(url)
        self.url = url
        self._prefix = parts.path.rstrip("/")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname or "127.0.0.1"
        self._port = parts.port or (443 if self._tls else 80)
        self._netloc = parts.netloc.rpartition("@")[2]
        self._connect_timeout = connect_timeout
        self._idle_timeout = idle_timeout
        self._idle: list[Connection] = []
        self._connect_seconds = 0.0  # that the last connection took

    async def send(self, request: Request) -> "Reply":
        """Sends a request and waits for the reply's head.

        An idle connection that the engine has closed meanwhile is replaced once, provided that the request
        cannot have reached the engine (`retry.was_undelivered`).

        Raises:
            UpstreamConnectError: no connection within `connect_timeout`: the request was not sent.
            UpstreamClosedError: it was sent, and the connection ended before a head came.
            UpstreamTimeoutError: no head came in time.
        """
        sent = Request(request.method, self._prefix + request.path, request.headers, request.body)
        if not self._idle:
            return await self._exchange(await self._connect(), sent)
        connection = self._idle.pop()
        try:
            return await self._exchange(connection, sent)
        except UpstreamClosedError as closed:
            after = connection.lost_after
            if connection.received or (
                after is not None and not routing.was_undelivered(after, self._connect_seconds)
            ):
                raise
            fresh = await self._connect_after(closed, written=after is not None)
        return await self._exchange(fresh, sent)

    async def is_gone(self) -> bool:
        """True where the engine takes no new connection, or closes one without an answer.

        An engine that is slow to answer is busy, and one that answers with an error lives.
        """
        try:
            async with asyncio.timeout(_PING_SECONDS):
                connection = await self._connect()
        except (UpstreamConnectError, TimeoutError):
            return True
        try:
            async with asyncio.timeout(_PING_SECONDS):
                reply = await self._exchange(connection, Request("GET", f"{self._prefix}/ping", []))
                async with reply:
                    await reply.body()
        except UpstreamClosedError:
            return True
        except (UpstreamError, TimeoutError):
            return False
        return False

    def keep(self, connection: Connection) -> None:
        """Takes a connection back after a reply."""
        if len(self._idle) < _MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()

    def forget(self, connection: Connection) -> None:
        """Removes a connection that has closed."""
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        for connection in list(self._idle):
            connection.close()

    async def _exchange(self, connection: Connection, request: Request) -> "Reply":
        with ExitStack() as undo:
            undo.callback(connection.close)
            connection.start(request, self._netloc)
            await connection.head(self._idle_timeout)
            undo.pop_all()
        return Reply(connection, self._idle_timeout)

    async def _connect_after(self, closed: UpstreamClosedError, *, written: bool) -> Connection:
        """A new connection in place of `closed`.

        An engine that takes none has died, and a request that was `written` to it counts as received.

        Raises:
            UpstreamClosedError: no connection, and the request was written.
            UpstreamConnectError: no connection, and it was not.
        """
        try:
            return await self._connect()
        except UpstreamConnectError:
            if written:
                raise closed from None
            raise

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, connection = await loop.create_connection(
                    lambda: Connection(self), self._host, self._port, ssl=self._tls
                )
        except TimeoutError:
            raise UpstreamConnectError(
                f"no connection to the engine within {self._connect_timeout:g} s", status=504
            ) from None
        except OSError as error:
            raise UpstreamConnectError(f"no connection to the engine ({type(error).__name__})") from None
        self._connect_seconds = loop.time() - began
        return connection


class Reply:
    """A reply whose head has come. Leaving its context returns the connection to its pool, or closes it."""

    def __init__(self, connection: Connection, idle_timeout: float) -> None:
        self.status = connection.status
        self.headers = connection.headers
        self._connection = connection
        self._idle_timeout = idle_timeout
        self._rest_is_wanted = True

    async def read(self) -> bytes:
        """See Connection.read."""
        return await self._connection.read(self._idle_timeout)

    async def body(self) -> bytes:
        """The rest of the body."""
        parts = []
        while data := await self.read():
            parts.append(data)
        return b"".join(parts)

    def skip_rest(self) -> None:
        """Has the rest of the reply read in the background and dropped, so that the connection is kept."""
        self._rest_is_wanted = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._rest_is_wanted or kind is not None:
            self._connection.release()
        else:
            self._connection.finish(_FINISH_SECONDS)


class Upstreams:
    """One pool per engine."""

    def __init__(self, connect_timeout: float, idle_timeout: float) -> None:
        self._timeouts = connect_timeout, idle_timeout
        self._pools: dict[str, Pool] = {}
        self._pings: dict[str, asyncio.Task[bool]] = {}

    def pool(self, url: str) -> Pool:
        if url not in self._pools:
            self._pools[url] = Pool(url, *self._timeouts)
        return self._pools[url]

    async def is_gone(self, url: str) -> bool:
        """See Pool.is_gone; callers at the same time share one request."""
        ping = self._pings.get(url)
        if ping is None:
            self._pings[url] = ping = asyncio.create_task(self.pool(url).is_gone())
            ping.add_done_callback(lambda _: self._pings.pop(url))
        return await asyncio.shield(ping)

    def close(self) -> None:
        for ping in self._pings.values():
            ping.cancel()
        for pool in self._pools.values():
            pool.close()
