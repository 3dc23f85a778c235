"""A fake SGLang control plane: scriptable, with SGLang's habits, and a log of every call in order.

What it computes is simple: the log-probability of ids[i] is `logprob(ids[i])` plus the skew of what is
loaded, so a test makes a folder's weights wrong by giving its path a skew.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gateway.reconcile.checkpoint import Stored, stored
from gateway.reconcile.compare import expected

LOOKS = frozenset({"/ready", "/ping", "/health", "/model_info", "/v1/models", "/server_info"})


def logprob(token: int) -> float:
    """What right weights give for a token."""
    return -0.125 * (token % 8) - 0.25


@dataclass
class Call:
    path: str
    body: dict[str, Any]


@dataclass
class FakeSGLang:
    """`replies[path]` are answered in turn before the normal one: (status, body), or "die"."""

    label: str = "default"
    base: str = "base"  # the folder that it starts with, and starts again with
    weights: str = "base"
    adapters: dict[str, str] = field(default_factory=dict)
    places: int = 8  # --max-loras-per-batch
    sampling_defaults: str | None = "model"  # --sampling-defaults; None: a version that does not say
    preferred: dict[str, Any] | None = None  # --preferred-sampling-params
    parser: str | None = "qwen"  # --tool-call-parser
    paused: bool = False
    loading: bool = False
    plain: bool = False  # some other OpenAI-compatible server
    skews: dict[str, float] = field(default_factory=dict)  # by path of weights or adapter, in nats
    drops: set[str] = field(default_factory=set)  # tensors that an update leaves as they were
    fatal: set[str] = field(default_factory=set)  # paths that kill the engine
    replies: dict[str, list[tuple[int, dict[str, Any]] | str]] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    url: str = ""
    _held: dict[str, Stored] = field(default_factory=dict)
    _server: ThreadingHTTPServer | None = None

    def asked(self) -> list[str]:
        """The control calls in order, without the looks."""
        return [call.path for call in self.calls if call.path not in LOOKS]

    def start(self) -> None:
        fake = self

        class Handler(_Handler):
            engine = fake

        port = int(self.url.rpartition(":")[2]) if self.url else 0
        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def die(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            threading.Thread(target=_close, args=(server,)).start()

    def restart(self) -> None:
        """On the same port, as it was first started: base weights and no adapters."""
        if self._server is not None:
            _close(self._server)
        self.label, self.weights, self.paused = "default", self.base, False
        self.adapters.clear()
        self._held.clear()
        self.start()

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any] | str:
        self.calls.append(Call(path, body))
        scripted = self.replies.get(path)
        if scripted:
            return scripted.pop(0)
        if self.plain:
            return (200, {}) if path == "/health" else (404, {})
        name = path.strip("/").replace("/", "_")
        handler = getattr(self, f"on_{name}", None)
        return (404, {"detail": "Not Found"}) if handler is None else handler(body)

    def on_ready(self, _: dict[str, Any]) -> tuple[int, Any]:
        return (503 if self.loading or self.paused else 200, {})

    def on_ping(self, _: dict[str, Any]) -> tuple[int, Any]:
        return (503 if self.loading else 200, {})

    def on_model_info(self, _: dict[str, Any]) -> tuple[int, Any]:
        return 200, {"model_path": self.weights, "weight_version": self.label}

    def on_server_info(self, _: dict[str, Any]) -> tuple[int, Any]:
        said: dict[str, Any] = {"max_loras_per_batch": self.places, "model_path": self.base}
        said |= {"preferred_sampling_params": self.preferred}
        said |= {"tool_call_parser": self.parser, "grammar_backend": "xgrammar"}
        if self.sampling_defaults is not None:
            said["sampling_defaults"] = self.sampling_defaults
        return 200, said

    def on_v1_models(self, _: dict[str, Any]) -> tuple[int, Any]:
        cards: list[dict[str, Any]] = [{"id": "policy", "parent": None}]
        cards += [{"id": name, "parent": "policy"} for name in self.adapters]
        return 200, {"data": cards}

    def on_pause_generation(self, _: dict[str, Any]) -> tuple[int, Any]:
        self.paused = True
        return 200, {"status": "ok"}

    def on_continue_generation(self, _: dict[str, Any]) -> tuple[int, Any]:
        self.paused = False
        return 200, {"status": "ok"}

    def on_update_weights_from_disk(self, body: dict[str, Any]) -> tuple[int, Any] | str:
        if body["model_path"] in self.fatal:
            return "die"
        before = self._tensors()
        self.weights = body["model_path"]
        self._held = {name: entry for name, entry in before.items() if name in self.drops}
        if body.get("flush_cache", True) and self.paused:
            return 400, {"success": False, "message": "Weights were updated, but the cache was not flushed"}
        self.label = body.get("weight_version") or self.label
        return 200, {"success": True, "message": "Succeeded"}

    def on_weights_checker(self, _: dict[str, Any]) -> tuple[int, Any]:
        held = self._tensors()
        sums = expected(held, held, tied=False)
        return 200, {"success": True, "ranks": [{"checksums": sums}], "per_engine_checksum": str(sums)}

    def _tensors(self) -> dict[str, Stored]:
        there = stored(Path(self.weights)) if Path(self.weights).is_dir() else {}
        return there | self._held

    def on_load_lora_adapter(self, body: dict[str, Any]) -> tuple[int, Any]:
        if body["lora_name"] in self.adapters:
            return 400, {"success": False, "error_message": "is already loaded"}
        self.adapters[body["lora_name"]] = body["lora_path"]
        return 200, {"success": True}

    def on_unload_lora_adapter(self, body: dict[str, Any]) -> tuple[int, Any]:
        self.adapters.pop(body["lora_name"], None)
        return 200, {"success": True}

    def on_generate(self, body: dict[str, Any]) -> tuple[int, Any]:
        path = self.adapters[body["lora_path"]] if "lora_path" in body else self.weights
        skew = self.skews.get(path, 0.0)
        return 200, _scores(body["input_ids"][body["logprob_start_len"] :], skew)


def _scores(ids: list[int], skew: float) -> dict[str, Any]:
    entries: list[list[Any]] = [[logprob(i) + skew, i, None] for i in ids]
    entries[0][0] = None
    return {"text": "", "meta_info": {"input_token_logprobs": entries}}


class _Handler(BaseHTTPRequestHandler):
    engine: FakeSGLang
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        """Quiet: the calls are in the fake's own log."""

    def _answer(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        reply = self.engine.answer(self.path, json.loads(raw) if raw else {})
        self.close_connection = True
        if isinstance(reply, str):
            self.engine.die()
            return
        status, body = reply
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(content)


def _close(server: ThreadingHTTPServer) -> None:
    server.shutdown()
    server.server_close()


@contextmanager
def fake_sglang(**settings: Any) -> Iterator[FakeSGLang]:
    fake = FakeSGLang(**settings)
    fake.start()
    try:
        yield fake
    finally:
        if fake._server is not None:
            _close(fake._server)
