"""Steady load: clients that hold conversations, streamed and not, and write down what they were promised."""

import asyncio
import time
from typing import Any

import orjson

from bench.faulting.books import Books, Failure
from bench.faulting.engine import answer_to

CONVERSATION_TURNS = 4
PATIENCE = 60.0  # seconds after which a client calls a request failed


class WrongAnswerError(Exception):
    """The gateway answered, but not what a client needs."""


class Client:
    """One user. It never asks a request twice, so that each id is one request."""

    def __init__(self, name: str, port: int, books: Books, pause: float) -> None:
        self._name = name
        self._port = port
        self._books = books
        self._pause = pause
        self._asked = 0
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._converse(stop)
        self._close()

    async def _converse(self, stop: asyncio.Event) -> None:
        history: list[dict[str, str]] = []
        before: str | None = None
        for _ in range(CONVERSATION_TURNS):
            self._asked += 1
            asked = f"{self._name}-{self._asked}"
            history.append({"role": "user", "content": f"please answer {asked}"})
            if stop.is_set() or not await self._ask(asked, history):
                return
            self._books.acknowledged[asked] = before
            before = asked
            history.append({"role": "assistant", "content": answer_to(asked)})
            await asyncio.sleep(self._pause)

    async def _ask(self, asked: str, history: list[dict[str, str]]) -> bool:
        """Whether the client got its last byte."""
        began, port = time.monotonic(), 0
        try:
            async with asyncio.timeout(PATIENCE):
                port = await self._connected()
                is_stream = self._asked % 2 == 0
                text = await self._exchange({"model": "m", "messages": history, "stream": is_stream})
            _must_be(answer_to(asked), text)
        except (OSError, EOFError, TimeoutError, WrongAnswerError) as error:
            self._close()
            said = f"{type(error).__name__}: {error}"
            self._books.failures.append(Failure(asked, port, began, time.monotonic(), said))
            await asyncio.sleep(self._pause)
            return False
        return True

    async def _connected(self) -> int:
        """The own port of a connection that is open, as far as one can know."""
        if self._reader is not None and self._reader.at_eof():
            self._close()
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return int(self._writer.get_extra_info("sockname")[1])

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def _exchange(self, payload: dict[str, Any]) -> str:
        assert self._reader is not None
        assert self._writer is not None
        body = orjson.dumps(payload)
        self._writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )
        status, headers = _head(await self._reader.readuntil(b"\r\n\r\n"))
        if "content-length" in headers:
            received = await self._reader.readexactly(int(headers["content-length"]))
        else:
            received = await _chunks(self._reader)
        if status != 200:
            raise WrongAnswerError(f"{status} {received[:200].decode('utf-8', 'replace')}")
        if payload["stream"]:
            return _said_in_stream(received)
        return str(orjson.loads(received)["choices"][0]["message"]["content"])


def _must_be(expected: str, text: str) -> None:
    if text != expected:
        raise WrongAnswerError(f"it said {text!r}")


def _head(data: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = data.decode("latin-1").split("\r\n")
    return int(first.split(" ")[1]), {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
    }


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    """A chunked body up to its very end."""
    parts: list[bytes] = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return b"".join(parts)


def _said_in_stream(received: bytes) -> str:
    """Raises WrongAnswerError where the stream's end is missing."""
    events = [event.removeprefix(b"data: ") for event in received.split(b"\n\n") if event]
    if not events or events[-1] != b"[DONE]":
        raise WrongAnswerError(f"the stream ends in {events[-1:]!r}")
    said = []
    for event in events[:-1]:
        for choice in orjson.loads(event).get("choices") or []:
            said.append(choice["delta"].get("content") or "")
    return "".join(said)
