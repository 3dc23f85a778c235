"""A small HTTP/1.1 client for the request path: one pool of kept-alive connections per engine.

A general client takes several times as long as the rest of the relay.
"""

import asyncio
import ssl
from contextlib import ExitStack
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from gateway.relay import retry
from gateway.relay.connection import Connection, Request
from gateway.relay.errors import UpstreamClosedError, UpstreamConnectError, UpstreamError

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
                after is not None and not retry.was_undelivered(after, self._connect_seconds)
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
