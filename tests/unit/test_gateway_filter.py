"""Dukou's own fields go, everything else stays, wherever the bytes are cut."""

import json

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.relay.capture import cuts_of
from gateway.relay.filter import Cuts, StreamFilter, filter_body, null_logprobs, remove_keys
from tests.fakes.upstream import DONE, chunk, event

STREAM_CUTS = cuts_of(
    [
        "return_input_ids_in_sglext",
        "return_output_ids_in_sglext",
        "logprobs",
        "stream_options.include_usage",
    ],
    None,
)
BODY_CUTS = cuts_of(["return_token_ids", "return_meta_info", "logprobs"], None)
LOGPROBS = {"content": [{"token": '}"{', "logprob": -0.5, "bytes": [1], "top_logprobs": []}]}


def compact(payload: object) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def run(
    stream: bytes, cuts: Cuts = STREAM_CUTS, sizes: list[int] | None = None
) -> tuple[bytes, StreamFilter]:
    events = StreamFilter(cuts)
    out, at = b"", 0
    for size in sizes or [len(stream)]:
        out += events.feed(stream[at : at + size])
        at += size
    out += events.feed(stream[at:])
    return out + events.end(), events


SGLANG_STREAM = b"".join(
    [
        compact(chunk({"role": "assistant", "content": ""}, logprobs=None)),
        compact(chunk({"content": '那天🚀é "logprobs":{'}, logprobs=LOGPROBS, matched_stop=None)),
        compact(chunk({"reasoning_content": None}, logprobs=LOGPROBS)),
        compact(chunk({"reasoning_content": "think"}, logprobs=LOGPROBS)),
        compact(chunk({}, "stop", logprobs=None, matched_stop=2)),
        compact({"id": "c1", "choices": [], "sglext": {"input_ids": [1, 2], "output_ids": [[3, 4]]}}),
        compact({"id": "c1", "choices": [], "usage": {"prompt_tokens": 5}}),
        DONE,
    ]
)
SGLANG_SHOWN = b"".join(
    [
        compact(chunk({"role": "assistant", "content": ""}, logprobs=None)),
        compact(chunk({"content": '那天🚀é "logprobs":{'}, logprobs=None, matched_stop=None)),
        compact(chunk({"reasoning_content": "think"}, logprobs=None)),
        compact(chunk({}, "stop", logprobs=None, matched_stop=2)),
    ]
)


def test_what_dukou_asked_for_is_cut_from_a_stream_and_nothing_else() -> None:
    """S7, S19."""
    out, events = run(SGLANG_STREAM)
    assert out == SGLANG_SHOWN
    assert events.done
    assert events.finished
    assert events.ids_seen
    assert events.error is None


@given(st.lists(st.integers(1, 400), max_size=12))
@settings(max_examples=200)
def test_any_cut_of_a_stream_gives_the_same_bytes(sizes: list[int]) -> None:
    """S1, S2."""
    assert run(SGLANG_STREAM, sizes=sizes)[0] == SGLANG_SHOWN


def test_one_byte_at_a_time_gives_the_same_bytes() -> None:
    """S1, S2."""
    assert run(SGLANG_STREAM, sizes=[1] * len(SGLANG_STREAM))[0] == SGLANG_SHOWN


def test_crlf_streams_pass_at_every_cut() -> None:
    stream = b"".join(
        e.replace(b"\n\n", b"\r\n\r\n")
        for e in (event(chunk({"content": "a"})), event(chunk({}, "stop")), DONE)
    )
    for cut in range(len(stream)):
        out, events = run(stream, sizes=[cut])
        assert out == stream[: -len(DONE) - 2]
        assert events.done


def test_without_cuts_a_stream_passes_byte_for_byte() -> None:
    out, events = run(SGLANG_STREAM, Cuts())
    assert out + DONE == SGLANG_STREAM
    assert events.done


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=40), max_size=4), st.booleans())
def test_any_delta_of_strings_passes_unchanged(delta: dict[str, str], spaced: bool) -> None:
    delta = {"content": "x", **delta}
    frame = event(chunk(delta)) if spaced else compact(chunk(delta))
    assert run(frame)[0] == frame


@pytest.mark.parametrize(
    "junk", [b": keepalive\n\n", b":\n\n", b"data:\n\n", b"data: \n\n", b": data: [DONE]\n\n"]
)
def test_comments_and_empty_events_are_dropped(junk: bytes) -> None:
    """S5, S6: so no comment ever meets an `id:` that a client remembers."""
    first, second = event(chunk({"content": "a"})), event(chunk({"content": "b"}))
    out, events = run(junk + first + junk + second)
    assert out == first + second
    assert not events.done


@pytest.mark.parametrize(
    "frame",
    [
        {"id": "c1", "choices": [], "prompt_filter_results": []},
        {"id": "c1", "choices": [], "something": {"new": 1}},
    ],
)
def test_unknown_events_without_choices_pass(frame: dict[str, object]) -> None:
    """P5."""
    assert run(event(frame))[0] == event(frame)


@pytest.mark.parametrize("choices", [{"choices": []}, {"choices": None}, {}])
def test_usage_goes_only_where_the_client_did_not_ask(choices: dict[str, object]) -> None:
    """S7."""
    frame = event({"id": "c1", **choices, "usage": {"prompt_tokens": 1}})
    assert run(frame)[0] == b""
    assert run(frame, Cuts(logprobs=True))[0] == frame


def test_sglext_fields_of_the_client_stay() -> None:
    frame = {"id": "c1", "choices": [], "sglext": {"input_ids": [1], "routed_experts": "x"}}
    out, _ = run(event(frame))
    assert json.loads(out.removeprefix(b"data: ")) == frame | {"sglext": {"routed_experts": "x"}}


@pytest.mark.parametrize(
    ("frame", "status", "type_"),
    [
        (
            b'data: {"error":{"message":"too long","type":"BadRequestError","code":400}}\n\n',
            400,
            "invalid_request_error",
        ),
        (b'event: error\ndata: {"error":{"message":"abort","code":500}}\n\n', 500, "server_error"),
        (b'data: {"object":"error","message":"x","code":429}\n\n', 429, "rate_limit_error"),
        (b'data: {"object":"error","message":"x","code":503}\n\n', 503, "service_unavailable"),
        (b'data: {"error":{"message":"bad key","code":401}}\n\n', 502, "upstream_error"),
    ],
)
def test_error_events_are_held_back_and_understood(frame: bytes, status: int, type_: str) -> None:
    """S11, P3."""
    ahead = event(chunk({"content": "a"}))
    out, events = run(ahead + frame + DONE)
    assert out == ahead
    assert not events.done
    assert events.error is not None
    assert (events.error.status, events.error.type) == (status, type_)


def test_a_stream_is_finished_when_every_choice_is() -> None:
    events = StreamFilter(Cuts(), choices=2)
    events.feed(event(chunk({}, "stop", 0)))
    assert not events.finished
    events.feed(event(chunk({}, "length", 1)))
    assert events.finished


def test_half_an_event_at_the_end_is_no_event_and_a_whole_one_is() -> None:
    whole = event(chunk({}, "stop"))
    assert run(whole[:-20])[0] == b""
    assert run(whole[:-2])[0] == whole
    assert run(b"data: [DONE]")[1].done


def test_a_body_loses_what_dukou_asked_for_and_nothing_else() -> None:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": 'say "meta_info":{ and "logprobs":{'},
        "logprobs": LOGPROBS,
        "finish_reason": "stop",
        "matched_stop": 2,
    }
    added = {"prompt_token_ids": [1, 2], "response_token_ids": [3], "meta_info": {"a": [[-0.1, 3, "}"]]}}
    body = json.dumps({"id": "x", "choices": [choice | added], "usage": {"n": 1.0}}, ensure_ascii=False)
    wanted = json.dumps(
        {"id": "x", "choices": [choice | {"logprobs": None}], "usage": {"n": 1.0}}, ensure_ascii=False
    )
    assert filter_body(body.encode(), BODY_CUTS) == wanted.encode()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=8,
)


@given(st.lists(st.tuples(st.sampled_from(["a", "cut", "b", "logprobs"]), JSON), max_size=5), st.booleans())
def test_cutting_keys_is_what_removing_them_from_the_object_is(
    pairs: list[tuple[str, object]], spaced: bool
) -> None:
    document = dict(pairs)
    text = json.dumps(document, separators=None if spaced else (",", ":")).encode()
    expected = {k: v for k, v in document.items() if k != "cut" or not isinstance(v, list | dict)}
    assert json.loads(remove_keys(text, ("cut",))) == expected
    nulled = {k: None if k == "logprobs" and isinstance(v, dict) else v for k, v in document.items()}
    assert json.loads(null_logprobs(text)) == nulled


def test_the_model_asked_for_is_shown_in_place_of_an_adapter() -> None:
    frame = event(chunk({"content": "a"}) | {"model": "policy:default-v3"})
    out, _ = run(frame, Cuts(model="policy"))
    assert json.loads(out.removeprefix(b"data: "))["model"] == "policy"


@pytest.mark.parametrize("depth", [1, 7, 8, 9, 40])
def test_a_value_goes_whole_however_deep_it_is(depth: int) -> None:
    value = b'{"]}\\"[": [' * depth + b'"[{", 1' + b"]}" * depth
    body = b'{"a": 1, "meta_info": ' + value + b', "b": "meta_info"}'
    assert remove_keys(body, ("meta_info",)) == b'{"a": 1, "b": "meta_info"}'


def test_a_value_that_never_ends_takes_the_rest_with_it() -> None:
    assert remove_keys(b'{"a": 1, "meta_info": {"b": [1, 2', ("meta_info",)) == b'{"a": 1'
