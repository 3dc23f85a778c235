"""FU: a raw TCP server that stands in for an engine and does exactly what its script says.

A script is a list of steps; each request is answered by the next script (the last one repeats). Every
request is logged, and whether the peer closed before the script was over.
"""

import asyncio
import json
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Send:
    data: bytes


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Until the test sets the event."""

    event: asyncio.Event


@dataclass(frozen=True, slots=True)
class End:
    """How the connection ends: fin, rst, hang until the peer closes, or die: nobody listens any more."""

    how: str


Step = Send | Sleep | Wait | End
FIN, RST, HANG, DIE = End("fin"), End("rst"), End("hang"), End("die")


@dataclass(slots=True)
class Logged:
    """One request as it came, and what became of its answer."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    peer_closed: asyncio.Event = field(default_factory=asyncio.Event)
    sent_at: list[float] = field(default_factory=list)  # loop times, one a Send

    @property
    def json(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.body)
        return loaded


class FakeUpstream:
    """`async with FakeUpstream([...steps]) as upstream:`, then `upstream.url`.

    `paths` scripts other paths than the hot ones; what has no script there is answered 404. It dies of a
    request whose body holds `killed_by`.
    """

    def __init__(
        self,
        *scripts: Iterable[Step],
        paths: dict[str, list[Step]] | None = None,
        killed_by: bytes | None = None,
    ) -> None:
        self.requests: list[Logged] = []
        self._scripts = [list(script) for script in scripts]
        self._paths = paths or {}
        self._killed_by = killed_by
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.connections = 0
        self.url = ""
        self._news = asyncio.Event()

    def asked(self, path: str = "/v1/chat/completions") -> list[Logged]:
        """The requests for one path, in order."""
        return [request for request in self.requests if request.path == path]

    async def arrived(self, count: int = 1, path: str = "/v1/chat/completions") -> list[Logged]:
        """Waits for the `count`th request for a path."""
        while len(self.asked(path)) < count:
            self._news.clear()
            await self._news.wait()
        return self.asked(path)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def die(self) -> None:
        """As a killed process: no new connection is taken, and all that are open end."""
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path, _ = first.split(" ")
        logged = Logged(method, path, headers, body)
        self.requests.append(logged)
        self._news.set()
        watching = asyncio.create_task(_watch(reader, logged))
        try:
            deadly = self._killed_by is not None and self._killed_by in body
            return await self._play([DIE] if deadly else self._script(path), writer, logged, watching)
        finally:
            if not logged.peer_closed.is_set():
                watching.cancel()

    def _script(self, path: str) -> list[Step]:
        if path in self._paths:
            return self._paths[path]
        if path not in ("/v1/chat/completions", "/v1/completions"):
            return [Send(answer(404, {"error": {"message": "no such path"}}))]
        return self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]

    async def _play(
        self, steps: list[Step], writer: asyncio.StreamWriter, logged: Logged, watching: asyncio.Task[None]
    ) -> bool:
        for step in steps:
            match step:
                case Send(data):
                    writer.write(data)
                    await writer.drain()
                    logged.sent_at.append(asyncio.get_running_loop().time())
                case Sleep(seconds):
                    await asyncio.wait([watching], timeout=seconds)
                case Wait(event):
                    await event.wait()
                case End("rst"):
                    sock: socket.socket = writer.get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    writer.transport.abort()
                    return False
                case End("die"):
                    self.die()
                    return False
                case End("hang"):
                    await logged.peer_closed.wait()
                    return False
                case _:
                    return False
        return not logged.peer_closed.is_set()


async def _watch(reader: asyncio.StreamReader, logged: Logged) -> None:
    """Notices the peer's end without taking bytes of its next request."""
    while not reader.at_eof() and reader.exception() is None:
        await asyncio.sleep(0.005)
        if reader._buffer:  # type: ignore[attr-defined]
            return
    logged.peer_closed.set()


def answer(status: int, payload: Any, headers: dict[str, str] | None = None) -> bytes:
    """A whole JSON reply with its length."""
    body = payload if isinstance(payload, bytes) else json.dumps(payload, ensure_ascii=False).encode()
    lines = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    head = "".join(f"{k}: {v}\r\n" for k, v in lines.items())
    return f"HTTP/1.1 {status} X\r\n{head}\r\n".encode() + body


def stream_head(headers: dict[str, str] | None = None) -> bytes:
    """The head of an event stream that ends with its connection."""
    lines = {"content-type": "text/event-stream; charset=utf-8", "connection": "close", **(headers or {})}
    return ("HTTP/1.1 200 OK\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items()) + "\r\n").encode()


def chunked(*parts: bytes) -> bytes:
    """A whole chunked event stream, after which the connection is kept."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def event(payload: Any) -> bytes:
    """One SSE frame, S(x) of the cases."""
    return b"data: " + json.dumps(payload, ensure_ascii=False).encode() + b"\n\n"


def chunk(delta: dict[str, Any], finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    """One chat.completion.chunk, ck(d, fr, i) of the cases."""
    choice = {"index": index, "delta": delta, "finish_reason": finish, **more}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


DONE = b"data: [DONE]\n\n"
