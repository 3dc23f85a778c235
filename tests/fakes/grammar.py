"""Requests and replies as nobody should send them: the right shape, with anything at any place of it.

Strategies give bytes. `examples` takes a list out of a strategy, for tests that need many at once.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import orjson
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

T = TypeVar("T")
Strategy = st.SearchStrategy[Any]

_WORDS = st.sampled_from(
    [
        "hello",
        "hi",
        "x",
        "",
        " ",
        "\x00",
        "\ud800",
        "é",
        "e\u0301",
        "a\r\nb",
        "<think>",
        "</think>",
        "NaN",
        "-1",
        "assistant",
    ]
)
_NUMBERS = st.sampled_from(
    [
        0,
        1,
        -1,
        2,
        2**31 - 1,
        2**31,
        2**40,
        2**63,
        2**64,
        -(2**70),
        0.5,
        1e308,
        -1e308,
        1e-320,
        float("nan"),
        float("inf"),
    ]
)
_SCALARS = st.none() | st.booleans() | _NUMBERS | _WORDS | st.text(max_size=4)
_NAMES = st.sampled_from(
    ["role", "content", "text", "function", "name", "arguments", "index", "id", "type", ""]
)
JUNK: Strategy = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=5,
)
_DEEP = st.integers(1, 2000).map(lambda depth: json.loads("[" * min(depth, 900) + "]" * min(depth, 900)))


def _or_junk(right: Strategy) -> Strategy:
    """Mostly what belongs here."""
    return st.one_of(right, right, right, right, JUNK)


def _object(required: dict[str, Strategy], optional: dict[str, Strategy]) -> Strategy:
    """An object of which any field may hold anything, and any may be missing."""
    return st.fixed_dictionaries(
        {}, optional={name: _or_junk(of) for name, of in (required | optional).items()}
    ) | st.fixed_dictionaries({name: _or_junk(of) for name, of in required.items()})


_TEXT = st.sampled_from(
    ["hello", "What is a bee?", "tell me more", "the answer", "x" * 30, "café", "cafe\u0301"]
)
_PART = _object({"type": st.just("text"), "text": _TEXT}, {"image_url": JUNK})
_ARGUMENTS = st.sampled_from(['{"a": 1}', '{"a":1.0}', "{", "", "[[[[]]]]", '{"a": 1e999}'])
_FUNCTION = _object({"name": st.just("f"), "arguments": _ARGUMENTS}, {})
_CALL = _object(
    {"id": st.just("c1"), "type": st.just("function"), "function": _FUNCTION}, {"index": st.just(0)}
)
_MESSAGE = _object(
    {
        "role": st.sampled_from(["system", "user", "assistant", "tool", "developer"]),
        "content": _TEXT | st.lists(_or_junk(_PART), max_size=3),
    },
    {
        "tool_calls": st.lists(_or_junk(_CALL), max_size=2),
        "tool_call_id": st.just("c1"),
        "name": st.just("n"),
    },
)
_TOOL = _object(
    {"type": st.just("function"), "function": _object({"name": st.just("f")}, {"strict": st.booleans()})}, {}
)
_METADATA = _object(
    {"task": st.just("title_generation")}, {"session_id": st.just("s"), "user_id": st.just("u_session_1")}
)
_REQUEST = _object(
    {"model": st.just("policy"), "messages": st.lists(_or_junk(_MESSAGE), max_size=5)},
    {
        "tools": st.lists(_or_junk(_TOOL), max_size=2),
        "tool_choice": st.sampled_from(["auto", "none", "required"]),
        "temperature": st.sampled_from([0, 0.7, 1]),
        "top_p": st.just(0.9),
        "top_k": st.just(20),
        "n": st.just(2),
        "stop": st.just(["a"]),
        "stream": st.booleans(),
        "user": st.just("u"),
        "metadata": _METADATA,
        "store": st.booleans(),
        "logit_bias": st.just({"1": 2}),
        "response_format": _object({"type": st.just("json_object")}, {}),
        "session_id": st.just("s"),
    },
)  # fmt: skip

_IDS = st.lists(_or_junk(st.integers(0, 50)), max_size=4)
_ENTRY = _object({"token": st.just("a"), "logprob": st.sampled_from([-0.1, -2.5])}, {})
_LOGPROBS = _object({"content": st.lists(_or_junk(_ENTRY), max_size=4)}, {"token_logprobs": _IDS})
_META = _object(
    {"output_token_logprobs": st.lists(_or_junk(st.just([-0.1, 11, None])), max_size=4)},
    {
        "weight_version": st.just("3"),
        "weight_versions": st.lists(_or_junk(_object({"version": st.just("3")}, {})), max_size=2),
        "finish_reason": JUNK,
    },
)
_END = st.sampled_from(["stop", "length", "tool_calls", "abort", None]) | _object(
    {"type": st.just("stop")}, {"matched": _NUMBERS}
)
_SAID = _object(
    {"role": st.just("assistant"), "content": _TEXT},
    {
        "reasoning_content": _TEXT,
        "tool_calls": st.lists(_or_junk(_CALL), max_size=2),
        "function_call": _FUNCTION,
        "refusal": _TEXT,
    },
)  # fmt: skip
_CHOICE_FIELDS: dict[str, Strategy] = {
    "logprobs": _LOGPROBS,
    "meta_info": _META,
    "prompt_token_ids": _IDS,
    "response_token_ids": _IDS,
    "matched_stop": st.sampled_from([151645, "END"]),
    "text": _TEXT,
}
_INDEX = st.sampled_from([0, 0, 0, 1, -1, 2**40, 2**31, "0", None, True, 0.0])
_CHOICE = _object({"index": _INDEX, "message": _SAID, "finish_reason": _END}, _CHOICE_FIELDS)
_PIECE = _object({"index": _INDEX, "delta": _SAID, "finish_reason": _END}, _CHOICE_FIELDS)
_USAGE = _object({"prompt_tokens": st.just(3), "completion_tokens": st.just(2)}, {})
_BESIDE: dict[str, Strategy] = {
    "usage": _USAGE,
    "sglext": _object({"input_ids": _IDS, "output_ids": st.lists(_or_junk(_IDS), max_size=2)}, {}),
    "metadata": _object({"weight_version": st.just("3")}, {}),
    "error": _object({"message": st.just("no"), "code": st.just(500)}, {}),
    "object": st.sampled_from(["error", "chat.completion"]),
    "model": st.sampled_from(["policy", "policy:default-v3", "policy:x-v99999999999"]),
}
_WHOLE = _object({"id": st.just("c"), "choices": st.lists(_or_junk(_CHOICE), max_size=3)}, _BESIDE)
_CHUNK = _object({"id": st.just("c"), "choices": st.lists(_or_junk(_PIECE), max_size=2)}, _BESIDE)


def _dumped(value: Any, *, ascii: bool = True) -> bytes:
    return json.dumps(value, ensure_ascii=ascii).encode("utf-8", "surrogatepass")


def _streamed(payloads: Sequence[Any], *, done: bool) -> bytes:
    events = [b"data: " + _dumped(payload) + b"\n\n" for payload in payloads]
    return b"".join(events) + (b"data: [DONE]\n\n" if done else b"")


def _cut(bodies: Strategy) -> Strategy:
    """Mostly whole; else ending anywhere."""
    return st.one_of(
        bodies,
        bodies,
        bodies,
        st.tuples(bodies, st.integers(0, 60)).map(lambda two: two[0][: -two[1] or None]),
    )


#: Bodies of chat requests.
REQUESTS: Strategy = _cut(
    st.builds(lambda value, plain: _dumped(value, ascii=plain), _or_junk(_REQUEST), st.booleans())
    | _DEEP.map(lambda deep: _dumped({"messages": [{"role": "user", "content": deep}], "stop": deep}))
    | st.binary(max_size=20)
)
#: Bodies of replies: JSON or a stream.
REPLIES: Strategy = _cut(
    _or_junk(_WHOLE).map(_dumped)
    | st.builds(
        lambda payloads, done: _streamed(payloads, done=done),
        st.lists(_or_junk(_CHUNK), max_size=5),
        st.booleans(),
    )
    | st.binary(max_size=20)
)


def _can_be_written(meta: dict[str, Any]) -> bool:
    """Whether a worker's encoder takes it: no integer beyond 64 bits, no lone surrogate."""
    try:
        orjson.dumps(meta)
    except TypeError:
        return False
    return True


#: Changes of a request record's meta; the id is the caller's.
CHANGES: Strategy = st.dictionaries(
    st.sampled_from(
        ["at_ns", "tenant", "key_id", "path", "headers", "session", "engine", "stream", "parent", "turn_type"]
    ),
    JUNK,
    max_size=2,
).filter(_can_be_written)
#: Changes of a reply record's meta.
ENDINGS: Strategy = st.dictionaries(
    st.sampled_from(
        [
            "outcome",
            "http_status",
            "first_byte_ns",
            "finished_ns",
            "version_min",
            "version_max",
            "engine",
            "error",
        ]
    ),
    JUNK,
    max_size=2,
).filter(_can_be_written)


def examples(
    strategy: st.SearchStrategy[T], count: int, decorate: Callable[[Any], Any] = lambda test: test
) -> list[T]:
    """`count` values, or some fewer: the same at every call, unless the profile asks for fresh ones.

    `decorate`: of Hypothesis, like its `seed`.
    """
    found: list[T] = []

    @settings(
        max_examples=count,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(value: T) -> None:
        found.append(value)

    decorate(collect)()
    return found
