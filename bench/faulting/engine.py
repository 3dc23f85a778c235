"""A stand-in for an engine in a process of its own: it answers at once, with ids and log-probabilities.

`python -m bench.faulting.engine` listens on any free port and prints its URL. An answer repeats the last
user message's last word, by which client and books know whose answer it is.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import orjson

TOKENS = 12
EVENT_SECONDS = 0.004  # between two events of a stream
_MODELS = {"data": [{"id": "stand-in", "object": "model"}]}


def answer_to(word: str) -> str:
    """What the engine says to a message that ends in `word`."""
    return f"the answer to {word} is ready and complete, and it ends here {word}"


class Connection(asyncio.Protocol):
    """One keep-alive connection; requests on it come one after the other."""

    def __init__(self) -> None:
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = _content_length(head)
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        self._answer(head.split(b" ", 2)[1].decode("latin-1"), rest[:length])

    def _answer(self, path: str, body: bytes) -> None:
        if path == "/model_info":  # it has no weights that a reconciler could compare
            self._write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            return
        if path != "/v1/chat/completions":
            self._send_json(_MODELS if path == "/v1/models" else {})
            return
        asked = orjson.loads(body)
        text = answer_to(str(asked["messages"][-1]["content"]).rsplit(" ", 1)[-1])
        if asked.get("stream"):
            self._write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            self._stream(_events(text), 0)
        else:
            self._send_json(_whole(text))

    def _stream(self, events: list[bytes], position: int) -> None:
        self._write(b"%x\r\n%b\r\n" % (len(events[position]), events[position]))
        if position + 1 < len(events):
            asyncio.get_running_loop().call_later(EVENT_SECONDS, self._stream, events, position + 1)
        else:
            self._write(b"0\r\n\r\n")

    def _send_json(self, payload: Any) -> None:
        body = orjson.dumps(payload)
        self._write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (len(body), body)
        )

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line[15:])
    return 0


def _capture() -> dict[str, Any]:
    listed = [[-0.25, 100 + number, None] for number in range(TOKENS)]
    return {
        "prompt_token_ids": list(range(1, 9)),
        "response_token_ids": [entry[1] for entry in listed],
        "meta_info": {"output_token_logprobs": listed, "weight_version": "0"},
    }


def _whole(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop", **_capture()}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


def _events(text: str) -> list[bytes]:
    words = text.split(" ")
    pieces = [{"content": word if number == 0 else f" {word}"} for number, word in enumerate(words)]
    events = [_event({"index": 0, "delta": piece, "finish_reason": None}) for piece in pieces]
    end = _event({"index": 0, "delta": {}, "finish_reason": "stop", **_capture()})
    return [*events, end, b"data: [DONE]\n\n"]


def _event(choice: dict[str, Any]) -> bytes:
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


async def serve(protocol: Callable[[], asyncio.Protocol] = Connection) -> None:
    """Listens on any free port, and prints its URL."""
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0, backlog=512)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    try:
        asyncio.run(serve())
    except KeyboardInterrupt:
        sys.exit(0)
