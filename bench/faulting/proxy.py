"""A TCP door before Postgres' unix socket, that can be shut, slowed, or made to lose a COMMIT's answer."""

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Self

_CHUNK = 2**16


@dataclass(slots=True)
class Proxy:
    """`async with Proxy(socket path) as proxy:`; everything else is switched while it runs."""

    target: str
    port: int = 0
    is_shut: bool = False
    delay: float = 0.0  # seconds added to every piece from Postgres
    loses_commit: bool = False  # the next COMMIT reaches Postgres, its answer nobody
    lost_commits: int = 0
    _server: asyncio.Server | None = None
    _open: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Ends every connection at once, without a goodbye."""
        for writer in list(self._open):
            writer.transport.abort()

    async def _accept(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.is_shut:
            back.transport.abort()
            return
        try:
            server, forth = await asyncio.open_unix_connection(self.target)
        except OSError:  # Postgres does not run just now
            back.transport.abort()
            return
        self._open |= {back, forth}
        commit = asyncio.Event()
        with contextlib.suppress(OSError):
            await asyncio.gather(
                self._pump(client, forth, commit, True),
                self._pump(server, back, commit, False),
            )
        for writer in (back, forth):
            writer.transport.abort()
            self._open.discard(writer)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        commit: asyncio.Event,
        forward: bool,
    ) -> None:
        while data := await reader.read(_CHUNK):
            if forward and self.loses_commit and b"COMMIT" in data:
                self.loses_commit = False
                commit.set()
            if not forward:
                if commit.is_set():  # Postgres has committed and says so
                    self.lost_commits += 1
                    raise ConnectionResetError
                if self.delay:
                    await asyncio.sleep(self.delay)
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError  # one side is gone: so is the other
