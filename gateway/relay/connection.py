"""One HTTP/1.1 connection to an engine: an asyncio.Protocol on httptools, a reply at a time.

Back-pressure is kept end to end: while nobody reads a reply, its socket is not read either.
"""

import asyncio
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, cast

import httptools

from gateway.relay.errors import UpstreamClosedError, UpstreamTimeoutError

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
