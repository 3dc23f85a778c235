"""The fake judge: an OpenAI-compatible endpoint that answers from a script and remembers what it was asked.

with FakeJudge(lambda n, body: says('{"score": 1}')) as judge: ... judge.url, judge.requests
"""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


@dataclass(frozen=True)
class Reply:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    hang: bool = False  # never answers


Script = Callable[[int, dict[str, Any]], Reply]


def says(content: str | None, *, finish: str = "stop", reasoning: str | None = None) -> Reply:
    """A chat completion with this final message."""
    message = {"role": "assistant", "content": content}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    body = {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }
    return Reply(body=json.dumps(body).encode())


def fails(status: int, message: str = "no", *, kind: str = "error", **headers: str) -> Reply:
    """An error in OpenAI's envelope, of this type; header names are given with underscores."""
    body = {"error": {"message": message, "type": kind, "param": None, "code": None}}
    return Reply(status, json.dumps(body).encode(), {k.replace("_", "-"): v for k, v in headers.items()})


def verdict(score: int, hint: str = "") -> Reply:
    return says(json.dumps({"reason": "because", "score": score, "hint": hint}))


def html() -> Reply:
    return Reply(body=b"<html><body>Welcome</body></html>", content_type="text/html")


HANG = Reply(hang=True)


class FakeJudge:
    """Serves `script(n, body)` for the n-th request, from 0; a context manager."""

    def __init__(self, script: Script) -> None:
        self._lock = threading.Lock()
        self._script = script
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def prompts(self) -> list[str]:
        """The user message of every request."""
        return [request["messages"][-1]["content"] for request in self.requests]

    def answer(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> Reply:
        with self._lock:
            n = len(self.requests)
            self.requests.append(body)
            self.headers.append(headers)
            self.paths.append(path)
        return self._script(n, body)

    def __enter__(self) -> "FakeJudge":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _handler(judge: FakeJudge) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            headers = {key.casefold(): value for key, value in self.headers.items()}
            reply = judge.answer(self.path, headers, body)
            if reply.hang:
                judge.closing.wait()
            self.send_response(reply.status)
            for key, value in reply.headers.items():
                self.send_header(key, value)
            self.send_header("content-type", reply.content_type)
            self.send_header("content-length", str(len(reply.body)))
            self.send_header("connection", "close")
            self.end_headers()
            self.wfile.write(reply.body)
            self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing: the requests are kept for the test."""

    return Handler
