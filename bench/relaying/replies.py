"""What the fake upstream of the gateway benchmark answers, as SGLang words it: with and without capture."""

import json
from pathlib import Path
from typing import Any

TOKENS = 64
EVENTS = TOKENS + 1  # `data:` lines that every client gets at least: the tokens and the end marker
_WORDS = (
    "The",
    " quick",
    " brown",
    " fox",
    " jumps",
    " over",
    " a",
    " lazy",
    " dog",
    " and",
    " then",
    " runs",
)
_PROMPT_IDS = [7 * i % 49152 for i in range(180)]
_IDS = [37 * i % 49152 for i in range(TOKENS)]
_USAGE = {"prompt_tokens": 180, "completion_tokens": TOKENS, "total_tokens": 180 + TOKENS}
_ID = "0123456789abcdef0123456789abcdef"


def write(folder: Path) -> None:
    """Writes plain.json, captured.json, plain.sse and captured.sse."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, captured in (("plain", False), ("captured", True)):
        (folder / f"{name}.json").write_bytes(_json(_body(captured)))
        events = [*(_chunk(i, captured) for i in range(TOKENS)), *_last(captured)]
        stream = b"".join(b"data: %b\n\n" % _json(event) for event in events) + b"data: [DONE]\n\n"
        (folder / f"{name}.sse").write_bytes(stream)


def request(*, stream: bool, pace_ms: int = 0) -> bytes:
    """A client's request of about 0.7 KB; `pace_ms` between the events of its stream."""
    system = "You are a careful assistant who answers in short, complete sentences. " * 6
    body: dict[str, Any] = {
        "model": "fake",
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": f"Tell me about quick brown fox ############. pace={pace_ms}"},
        ],
        "temperature": 1.0,
        "max_tokens": 256,
    }
    return _json(body | {"stream": True} if stream else body)


def _body(captured: bool) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": _text(), "reasoning_content": None, "tool_calls": None},
        "logprobs": {"content": [_entry(i) for i in range(TOKENS)]} if captured else None,
        "finish_reason": "stop",
        "matched_stop": 2,
    }
    if captured:
        listed = [[-0.01 * (i + 1), token, None] for i, token in enumerate(_IDS)]
        choice["meta_info"] = {
            "id": _ID,
            "finish_reason": {"type": "stop", "matched": 2},
            "prompt_tokens": 180,
            "weight_version": "1",
            "output_token_logprobs": listed,
            "weight_versions": [{"version": "1", "start": 0, "end": TOKENS}],
            "completion_tokens": TOKENS,
        }
        choice |= {"prompt_token_ids": _PROMPT_IDS, "response_token_ids": _IDS}
    head = {"id": _ID, "object": "chat.completion", "created": 1764430000, "model": "fake"}
    return head | {"choices": [choice], "usage": _USAGE, "metadata": {"weight_version": "1"}}


def _chunk(position: int, captured: bool) -> dict[str, Any]:
    delta = {"role": "assistant" if position == 0 else None, "content": _word(position)}
    logprobs = {"content": [_entry(position)]} if captured else None
    return _event({"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": None})


def _last(captured: bool) -> list[dict[str, Any]]:
    """The finish, and what capture asked for."""
    empty = {"role": None, "content": None, "reasoning_content": None, "tool_calls": None}
    finish = _event(
        {"index": 0, "delta": empty, "logprobs": None, "finish_reason": "stop", "matched_stop": 2}
    )
    if not captured:
        return [finish]
    ids = {"input_ids": _PROMPT_IDS, "output_ids": [_IDS]}
    return [finish, _event() | {"sglext": ids}, _event() | {"usage": _USAGE}]


def _event(*choices: dict[str, Any]) -> dict[str, Any]:
    head = {"id": _ID, "object": "chat.completion.chunk", "created": 1764430000, "model": "fake"}
    return head | {"choices": list(choices)}


def _entry(position: int) -> dict[str, Any]:
    word = _word(position)
    return {
        "token": word,
        "logprob": -0.013171 * (position + 1),
        "bytes": list(word.encode()),
        "top_logprobs": [],
    }


def _word(position: int) -> str:
    return _WORDS[position % len(_WORDS)]


def _text() -> str:
    return "".join(_word(i) for i in range(TOKENS)) * 3


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
