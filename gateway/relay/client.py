"""The client's side of a turn: its request as it came, and the response that goes out to it."""

import asyncio
import time
import types
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from gateway.relay.identity import Session
from gateway.relay.upstream import Headers

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

NO_BUFFERING: Headers = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A client's request before its body is read."""

    method: str
    path: str  # without the session prefix
    path_session: str | None  # the session named by the prefix
    headers: dict[str, str]  # lower-case names
    key_id: str | None  # the API key's id; None where no key is asked for


@dataclass(frozen=True, slots=True)
class Inbound:
    """A client's request with its whole body, not parsed yet."""

    id: str  # the turn's
    path: str
    path_session: str | None
    headers: dict[str, str]  # lower-case names
    key_id: str | None
    body: bytes
    at_ns: int  # when its head came


class Client:
    """Sends one response; nothing more once `gone` is set."""

    def __init__(self, inbound: Inbound, send: Send, cors: Headers, write_timeout: float) -> None:
        self.status: int | None = None  # of the response; None: its head has not been sent
        self.gone: str | None = None  # why the client gets nothing more
        self.session: Session | None = None  # stated in the response's headers, as is the version
        self.version: int | None = None
        self._inbound = inbound
        self._send_message = send
        self._cors = cors
        self._write_timeout = write_timeout

    async def begin(self, status: int, headers: Headers) -> None:
        """Sends status and headers; does nothing when they have been sent."""
        if self.status is None and self.gone is None:
            self.status = status
            own = _own_headers(self._inbound, self.session, self.version)
            all_headers = [*headers, *own, *self._cors]
            await self._send({"type": "http.response.start", "status": status, "headers": all_headers})

    async def send(self, body: bytes, *, more: bool = True) -> None:
        """Sends bytes of the body. Sets `gone` when the client does not read for the write timeout."""
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if self.gone is not None:
            return
        steps = self._send_message(message).__await__()
        try:
            waits_for = next(steps)
        except StopIteration:
            return  # nearly always: the socket took it, and no timeout had to be set
        try:
            async with asyncio.timeout(self._write_timeout):
                await _resume(steps, waits_for)
        except TimeoutError:
            self.gone = f"the client did not read for {self._write_timeout:g} s"


@types.coroutine
def _resume(steps: Generator[object, None, None], waits_for: object) -> Generator[object, None, None]:
    """Awaits the rest of a coroutine that has yielded the future `waits_for`."""
    with ExitStack() as undo:
        undo.callback(steps.close)
        yield waits_for
        undo.pop_all()
    yield from steps


def _own_headers(inbound: Inbound, session: Session | None, version: int | None) -> Headers:
    """The headers that Dukou adds to every response."""
    request_id = inbound.headers.get("x-request-id", "")
    elapsed = (time.time_ns() - inbound.at_ns) // 1_000_000
    if not (request_id and request_id.isascii() and request_id.isprintable()):
        request_id = inbound.id
    headers = [
        (b"x-request-id", request_id.encode()),
        (b"x-turn-id", inbound.id.encode()),
        (b"openai-processing-ms", b"%d" % elapsed),
    ]
    if session is not None and session.id.isascii():
        headers.append((b"x-session-id", session.id.encode()))
    if version is not None:
        headers.append((b"x-policy-version", b"%d" % version))
    return headers
