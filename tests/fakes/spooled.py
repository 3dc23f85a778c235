"""Spool records and replies as workers write them, made by hand."""

import fcntl
import itertools
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.spool.format import Kind, Record, encode
from gateway.spool.records import ReplyRecord, RequestRecord

SECOND = 10**9
_salts = itertools.count(1)
Message = dict[str, Any]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str | None, **more: Any) -> Message:
    return {"role": "assistant", "content": text, **more}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def turn_id(at: float, salt: int = 0) -> str:
    """A UUIDv7 of the second `at`; the same for the same arguments."""
    random = uuid.uuid5(uuid.NAMESPACE_OID, f"{at} {salt}").int & (1 << 80) - 1
    value = int(at * 1000) << 80 | random
    value = value & ~(0xF << 76) | 0x7 << 76
    return uuid.UUID(int=value & ~(0x3 << 62) | 0x2 << 62).hex


def request_meta(turn: str, at: float, **changes: Any) -> dict[str, Any]:
    meta = {
        "id": turn,
        "at_ns": int(at * SECOND),
        "tenant": "default",
        "key_id": "k1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "headers": {},
        "session": None,
        "engine": "http://engine",
        "added": [],
        "stream": False,
    }
    return meta | changes


def reply_meta(turn: str, finished: float, **changes: Any) -> dict[str, Any]:
    meta = {
        "id": turn,
        "outcome": "ok",
        "http_status": 200,
        "first_byte_ns": int(finished * SECOND) - 1000,
        "finished_ns": int(finished * SECOND),
        "version_min": 3,
        "version_max": 3,
        "engine": "http://engine",
        "sampling_defaults": {},
        "error": None,
    }
    return meta | changes


def request_body(messages: Sequence[Any], **more: Any) -> bytes:
    return json.dumps({"model": "policy", "messages": list(messages), **more}).encode()


def reply_body(text: str | None, finish: str | None = "stop", **message: Any) -> bytes:
    """A JSON reply with prompt ids, response ids and log-probabilities: two tokens."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text, **message},
        "finish_reason": finish,
        "prompt_token_ids": [1, 2, 3],
        "response_token_ids": [11, 12],
        "meta_info": {"output_token_logprobs": [[-0.1, 11, None], [-0.25, 12, None]]},
    }
    return json.dumps({"id": "c", "choices": [choice], "usage": {"completion_tokens": 2}}).encode()


def sse(*payloads: Any) -> bytes:
    """A stream of these payloads; strings go as they are."""
    lines = (payload if isinstance(payload, str) else json.dumps(payload) for payload in payloads)
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def chunk(
    delta: Mapping[str, Any], finish: str | None = None, index: int = 0, **choice: Any
) -> dict[str, Any]:
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "choices": [{"index": index, "delta": dict(delta), "finish_reason": finish, **choice}],
    }


def records(
    messages: Sequence[Any], text: str | None = "answer", at: float = 1000.0, **changes: Any
) -> tuple[Record, Record]:
    """A plain request and its reply."""
    turn = turn_id(at)
    request = Record(Kind.REQUEST, request_meta(turn, at, **changes), request_body(messages))
    return request, Record(Kind.REPLY, reply_meta(turn, at + 1), reply_body(text))


def request_record(turn: str, body: bytes = b"", at: float = 1000.0, **changes: Any) -> RequestRecord:
    return RequestRecord.decode(Record(Kind.REQUEST, request_meta(turn, at, **changes), body))


def reply_record(turn: str, body: bytes = b"", finished: float = 1001.0, **changes: Any) -> ReplyRecord:
    return ReplyRecord.decode(Record(Kind.REPLY, reply_meta(turn, finished, **changes), body))


class Worker:
    """Writes segments as a worker does, holding their locks."""

    def __init__(self, folder: Path, started: int = 1) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._prefix = f"77-{started}"
        self._number = 0
        self._files: list[int] = []
        self.next_segment()

    def next_segment(self) -> None:
        path = self._folder / f"{self._prefix}-{self._number}.seg"
        self._number += 1
        self._files.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600))
        fcntl.flock(self._files[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)

    def append(self, data: bytes) -> None:
        os.write(self._files[-1], data)

    def request(self, meta: Mapping[str, Any], body: bytes) -> None:
        self.append(encode(Kind.REQUEST, dict(meta), body))

    def reply(self, meta: Mapping[str, Any], body: bytes) -> None:
        self.append(encode(Kind.REPLY, dict(meta), body))

    def ask(
        self,
        at: float,
        messages: Sequence[Any],
        **meta: Any,
    ) -> str:
        """Writes a request record; returns the turn's id in hex."""
        turn = turn_id(at, next(_salts))
        self.request(request_meta(turn, at, **meta), request_body(messages))
        return turn

    def answer(
        self, turn: str, finished: float, text: str | None = "answer", body: bytes | None = None, **meta: Any
    ) -> None:
        self.reply(reply_meta(turn, finished, **meta), reply_body(text) if body is None else body)

    def turn(self, at: float, messages: Sequence[Any], text: str | None = "answer", **meta: Any) -> str:
        """A whole turn that takes half a second."""
        turn = self.ask(at, messages, **meta)
        self.answer(turn, at + 0.5, text)
        return turn

    def die(self) -> None:
        """Lets go of every lock, as the kernel does for a process that was killed."""
        while self._files:
            os.close(self._files.pop())
