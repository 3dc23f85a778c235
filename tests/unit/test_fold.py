import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.parse.reply import fold, fold_events
from gateway.parse.stream import Parser
from tests.fakes.spooled import chunk, sse


def logged(delta, *logprobs, finish=None, index=0):
    content = [{"token": "t", "logprob": value} for value in logprobs]
    return chunk(delta, finish, index, logprobs={"content": content} if logprobs else None)


USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}
IDS = {"choices": [], "sglext": {"input_ids": [1, 2, 3], "output_ids": [[11, 12, 13, 14]]}}
STREAM = sse(
    logged({"role": "assistant", "content": "那"}, -0.1),
    logged({"content": "天🚀"}, -0.2),
    logged({"content": "é"}, -0.3, -0.4),
    logged({}, finish="stop"),
    IDS,
    USAGE,
    "[DONE]",
)


def only(reply):
    (answer,) = reply.answers
    return answer


def test_a_captured_stream_folds_into_text_ids_and_appended_logprobs():
    """S21."""
    reply = fold(STREAM)
    answer = only(reply)
    assert answer.text == "那天🚀é"
    assert answer.prompt_ids == (1, 2, 3)
    assert answer.response_ids == (11, 12, 13, 14)
    assert answer.logprobs == (-0.1, -0.2, -0.3, -0.4)
    assert (answer.finish_reason, reply.done, reply.error) == ("stop", True, None)
    assert reply.usage == USAGE["usage"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=6))
def test_a_stream_folds_the_same_wherever_it_is_cut(cuts):
    edges = [0, *sorted(cuts), len(STREAM)]
    chunks = [STREAM[start:end] for start, end in pairwise(edges)]
    assert fold_events(Parser(), chunks) == fold(STREAM)


def test_every_single_cut_gives_the_same():
    """S1, S2."""
    whole = fold(STREAM)
    for at in range(1, len(STREAM)):
        assert fold_events(Parser(), [STREAM[:at], STREAM[at:]]) == whole


@pytest.mark.parametrize("length", range(0, len(STREAM), 7))
def test_a_stream_that_ends_anywhere_folds_to_a_beginning_of_the_text(length):
    reply = fold(STREAM[:length])
    assert reply.error is None
    assert all("那天🚀é".startswith(answer.text or "") for answer in reply.answers)


@pytest.mark.parametrize(
    "odd",
    [
        USAGE,
        {"choices": None},
        {"id": "c"},
        {"id": "c", "prompt_filter_results": []},
        {"choices": [None, 3]},
        [],
    ],
)
def test_chunks_without_a_choice_are_no_trouble(odd):
    """S7."""
    reply = fold(sse(odd, chunk({"content": "a"}), odd, chunk({}, "stop"), "[DONE]"))
    assert (only(reply).text, reply.error) == ("a", None)


def test_reasoning_comes_under_two_names_and_apart_from_the_text():
    """S19."""
    reply = fold(
        sse(
            chunk({"reasoning_content": "think1"}),
            chunk({"reasoning": "think2"}),
            chunk({"content": None, "reasoning_content": "think3", "reasoning": "think3"}),
            chunk({"content": "ans"}),
            chunk({}, "stop"),
        )
    )
    assert (only(reply).reasoning, only(reply).text) == ("think1think2think3", "ans")


def test_choices_of_n_3_keep_their_own_ids_whatever_ends_first():
    reply = fold(
        sse(
            logged({"content": "c"}, -3.0, index=2, finish="stop"),
            logged({"content": "a"}, -1.0, index=0, finish="stop"),
            logged({"content": "b"}, -2.0, index=1, finish="stop"),
            {"choices": [], "sglext": {"input_ids": [1], "output_ids": [[10], [20], [30]]}},
        )
    )
    assert [(a.index, a.text, a.response_ids, a.logprobs) for a in reply.answers] == [
        (0, "a", (10,), (-1.0,)),
        (1, "b", (20,), (-2.0,)),
        (2, "c", (30,), (-3.0,)),
    ]


@pytest.mark.parametrize(
    "frame",
    [
        b'data: {"error":{"message":"abort","code":500}}\n\n',
        b'event: error\ndata: {"error":{"message":"abort"}}\n\n',
        b'event: error\ndata: {"message":"abort"}\n\n',
        b'data: {"object":"error","message":"abort","code":400}\n\n',
        b'data: {"error":"abort"}\n\n',
    ],
)
def test_an_error_frame_is_an_error_even_before_the_end_marker(frame):
    """S11."""
    reply = fold(sse(chunk({"content": "a"})) + frame + sse("[DONE]"))
    assert (reply.error, reply.done, only(reply).finish_reason) == ("abort", True, None)


def test_a_broken_event_in_the_middle_is_an_error_and_at_the_end_a_cut():
    broken = b'data: {"choices": [{"ind\n\n'
    assert fold(sse(chunk({"content": "a"})) + broken).error is None
    assert "no JSON" in fold(sse(chunk({"content": "a"})) + broken + sse(chunk({"content": "b"}))).error


def test_extra_fields_of_a_json_reply_are_found_on_the_raw_object():
    """P5."""
    body = {
        "prompt_token_ids": [1, 2, 3],
        "sglext": {"weight_version": "7"},
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "x", "refusal": None},
                "finish_reason": "stop",
                "token_ids": [11, 12],
                "matched_stop": 151645,
                "meta_info": {"output_token_logprobs": [[-0.1, 11, None], [-0.2, 12, None]]},
            }
        ],
    }
    answer = only(fold(json.dumps(body).encode()))
    assert (answer.response_ids, answer.prompt_ids, answer.version) == ((11, 12), (1, 2, 3), (7, 7))
    assert (answer.logprobs, answer.matched_stop) == ((-0.1, -0.2), 151645)


def test_ids_of_meta_info_serve_where_no_list_is_there():
    meta = {"output_token_logprobs": [[-0.1, 11, "a"], [-0.2, 12, "b"]]}
    body = {"choices": [{"message": {"content": "x"}, "finish_reason": "stop", "meta_info": meta}]}
    assert only(fold(json.dumps(body).encode())).response_ids == (11, 12)


def test_token_ids_of_stream_chunks_are_appended():
    reply = fold(sse(chunk({"content": "a"}, token_ids=[1, 2]), chunk({}, "stop", token_ids=[3])))
    assert only(reply).response_ids == (1, 2, 3)


def test_nan_infinity_and_null_logprobs_parse_and_stay_missing_or_not_finite():
    """K7."""
    body = b'{"choices": [{"message": {"content": "x"}, "meta_info": {"output_token_logprobs":'
    body += b" [[null, 11, null], [NaN, 12, null], [-Infinity, 13, null], [-100.0, 14, null]]}}]}"
    first, second, third, fourth = only(fold(body)).logprobs
    assert first is None
    assert second != second
    assert (third, fourth) == (float("-inf"), -100.0)


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ({"weight_versions": [{"version": "41", "start": 0, "end": 30}, {"version": "42"}]}, (41, 42)),
        ({"weight_version": "default"}, None),
        ({"weight_versions": [{"version": "41"}, {"version": "default"}]}, None),
        ({"weight_version": 5}, (5, 5)),
        ({}, None),
    ],
)
def test_versions_are_spans_of_integers_or_unknown(meta, expected):
    """K16."""
    body = {"choices": [{"message": {"content": "x"}, "finish_reason": "stop", "meta_info": meta}]}
    assert only(fold(json.dumps(body).encode())).version == expected


def test_top_level_version_is_about_the_first_of_several_choices_only():
    choices = [{"index": i, "message": {"content": "x"}, "finish_reason": "stop"} for i in (0, 1)]
    reply = fold(json.dumps({"metadata": {"weight_version": "4"}, "choices": choices}).encode())
    assert [answer.version for answer in reply.answers] == [(4, 4), None]


def test_an_adapters_name_carries_the_version_and_the_engines_label_does_not():
    body = {
        "model": "policy:default-v12",
        "metadata": {"weight_version": "0"},
        "choices": [{"message": {"content": "x"}, "finish_reason": "stop"}],
    }
    assert only(fold(json.dumps(body).encode())).version == (12, 12)


def test_a_reply_that_is_no_json_is_an_error_and_an_empty_one_is_nothing():
    assert "no JSON" in fold(b'{"choices": [').error
    assert fold(b"") == fold(b"<html>bad gateway</html>")
    assert fold(b"").answers == ()


def test_completions_give_text():
    """P22."""
    body = {"choices": [{"index": 0, "text": "x", "finish_reason": "length", "token_ids": [5]}]}
    answer = only(fold(json.dumps(body).encode()))
    assert (answer.text, answer.finish_reason, answer.response_ids) == ("x", "length", (5,))
