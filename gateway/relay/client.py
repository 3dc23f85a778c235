"""The client's side of a turn: what goes out to it, and how one learns that it has left."""

import asyncio
import time
import types
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from gateway.relay.connection import Headers
from gateway.relay.identity import Session

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

NO_BUFFERING: Headers = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


@dataclass(frozen=True, slots=True)
class Inbound:
    """A client's request, read and not yet understood."""

    id: str  # the turn's
    path: str
    path_session: str | None
    headers: dict[str, str]  # lower-case names
    key_id: str | None
    body: bytes
    at_ns: int


class Client:
    """Sends one response. After `gone` is set nothing is sent any more."""

    def __init__(self, inbound: Inbound, send: Send, cors: Headers, write_timeout: float) -> None:
        self.status: int | None = None  # what went out
        self.gone: str | None = None  # why nobody listens any more
        self.session: Session | None = None  # told to the client, with the next
        self.version: int | None = None
        self._inbound = inbound
        self._send_message = send
        self._cors = cors
        self._write_timeout = write_timeout

    async def begin(self, status: int, headers: Headers) -> None:
        """Sends status and headers, once."""
        if self.status is None and self.gone is None:
            self.status = status
            told = _own_headers(self._inbound, self.session, self.version)
            all_headers = [*headers, *told, *self._cors]
            await self._send({"type": "http.response.start", "status": status, "headers": all_headers})

    async def send(self, body: bytes, *, more: bool = True) -> None:
        """Sends bytes of the body; waits while the client does not read."""
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if self.gone is not None:
            return
        steps = self._send_message(message).__await__()
        try:
            waits_for = next(steps)
        except StopIteration:
            return  # nearly always: the socket took it, and no clock had to be set
        try:
            async with asyncio.timeout(self._write_timeout):
                await _going_on(steps, waits_for)
        except TimeoutError:
            self.gone = f"the client did not read for {self._write_timeout:g} s"


@types.coroutine
def _going_on(steps: Generator[object, None, None], waits_for: object) -> Generator[object, None, None]:
    """Awaits the rest of what has begun; `waits_for` is the future that it gave to wait for."""
    with ExitStack() as undo:
        undo.callback(steps.close)
        yield waits_for
        undo.pop_all()
    yield from steps


def _own_headers(inbound: Inbound, session: Session | None, version: int | None) -> Headers:
    """What Dukou says of every turn."""
    asked = inbound.headers.get("x-request-id", "")
    elapsed = (time.time_ns() - inbound.at_ns) // 1_000_000
    headers = [
        (
            b"x-request-id",
            (asked if asked.isascii() and asked.isprintable() and asked else inbound.id).encode(),
        ),
        (b"x-turn-id", inbound.id.encode()),
        (b"openai-processing-ms", b"%d" % elapsed),
    ]
    if session is not None and session.id.isascii():
        headers.append((b"x-session-id", session.id.encode()))
    if version is not None:
        headers.append((b"x-policy-version", b"%d" % version))
    return headers
