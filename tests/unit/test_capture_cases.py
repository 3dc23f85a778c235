"""Reports from the field about token capture, each as a turn that is folded from an engine's own bytes."""

import json

import numpy as np
import pytest

from gateway.drain.assemble import assemble
from gateway.parse.reply import fold, fold_events
from gateway.parse.stream import Parser
from gateway.relay.capture import CHAT, COMPLETIONS, Recipient, prepare
from gateway.relay.filter import StreamFilter, filter_body
from gateway.spool.format import Kind, Record
from tests.fakes.spooled import assistant, chunk, reply_meta, request_body, request_meta, sse, turn_id, user
from tests.fakes.upstream import event

TURN = turn_id(1000.0)
HI = (user("hi"),)


def turn(reply, messages=HI, **meta):
    asked = Record(Kind.REQUEST, request_meta(TURN, 1000.0), request_body(messages))
    return assemble(asked, Record(Kind.REPLY, reply_meta(TURN, 1001.0, **meta), reply), 1).rows[0]


def whole(text, ids, entries, finish="stop", **choice):
    made = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": finish,
        "prompt_token_ids": [1, 2, 3],
        "response_token_ids": ids,
        "meta_info": {"output_token_logprobs": entries},
        **choice,
    }
    return json.dumps({"id": "c", "choices": [made]}).encode()


def entries(*values, first=1):
    return [[value, token, None] for token, value in enumerate(values, first)]


def test_ids_are_the_engines_own_whatever_a_tokenizer_would_make_of_the_text():
    """K1."""
    made = turn(whole(" Pantom", [393, 30002], [[-1.0, 393, None], [-2.0, 30002, None]]))
    assert made.response_ids.tolist() == [393, 30002]
    assert made.response_logprobs.tolist() == [-1.0, -2.0]


@pytest.mark.parametrize("parser", [True, False])
def test_a_reasoning_parser_splits_the_text_and_leaves_the_ids(parser):
    """K3."""
    ids = [18, 9, 18, 151668, 271, 19, 151645]
    message = {"role": "assistant", "content": "3*3 makes 9.\n</think>\n\nNine."}
    if parser:
        message = {"role": "assistant", "content": "Nine.", "reasoning_content": "3*3 makes 9."}
    reply = whole("", ids, entries(*[-0.1] * 7), message=message, prompt_token_ids=[151644, 151667, 198])
    made = turn(reply)
    assert (made.response_ids.tolist(), made.untrainable_reason) == (ids, None)
    assert made.prompt_ids.tolist() == [151644, 151667, 198]
    assert (made.reasoning_text, made.response_text) == (
        (message.get("reasoning_content")),
        message["content"],
    )


def test_a_parser_that_swallows_entries_makes_the_turn_untrainable():
    """K5."""
    one = {"content": [{"token": "b", "logprob": -0.1}]}
    stream = sse(
        chunk({"reasoning_content": "a"}, logprobs=None),
        chunk({"reasoning_content": "b"}, logprobs=one),
        chunk({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]}, logprobs=None),
        chunk({}, "tool_calls"),
        {"choices": [], "usage": {"completion_tokens": 7}},
        "[DONE]",
    )
    made = turn(stream)
    assert made.untrainable_reason == "logprob_count_mismatch"
    with_ids = turn(
        stream.replace(b'"usage"', b'"sglext": {"input_ids": [1], "output_ids": [[1, 2, 3]]}, "usage"')
    )
    assert (with_ids.response_ids.tolist(), with_ids.response_logprobs) == ([1, 2, 3], None)
    assert with_ids.untrainable_reason == "logprob_count_mismatch"


def test_tokens_behind_a_stop_string_and_the_stop_token_are_kept():
    """K8: (a) the text is cut and the ids are not; (c) the model must learn to stop."""
    cut = turn(whole("ab", [1, 2, 3, 4], entries(*[-0.1] * 4), matched_stop="END"))
    assert (cut.response_text, cut.response_ids.tolist(), cut.matched_stop) == ("ab", [1, 2, 3, 4], "END")
    assert cut.untrainable_reason is None
    stopped = turn(
        whole(
            "ab",
            [1, 2, 151645],
            [[-0.1, 1, None], [-0.2, 2, None], [-0.3, 151645, None]],
            matched_stop=151645,
        )
    )
    assert stopped.response_ids.tolist() == [1, 2, 151645]
    assert stopped.response_logprobs[-1] == pytest.approx(-0.3)
    assert (stopped.matched_stop, stopped.untrainable_reason) == ("151645", None)


def test_fewer_or_more_logprobs_than_ids_are_never_aligned_by_guess():
    """K8 (b), K10."""
    for count, given in ((3, 4), (16, 1)):
        made = turn(whole("x", list(range(1, count + 1)), entries(*[-0.1] * given)))
        assert (made.untrainable_reason, made.response_logprobs) == ("logprob_count_mismatch", None)
        assert len(made.response_ids) == count


@pytest.mark.parametrize("value", ["null", "NaN", "-Infinity", "-9999.0"])
def test_a_sampled_token_without_a_number_is_missing_and_an_alternative_is_nobodys_business(value):
    """K7."""
    body = whole("x", [1, 2], entries(-100.0, -77.5)).replace(b"-77.5", value.encode())
    made = turn(body)
    assert made.untrainable_reason == "logprob_not_finite"
    assert np.isnan(made.response_logprobs).tolist() == [False, True]
    alternative = {"token": "a", "logprob": -0.1, "top_logprobs": [{"token": "b", "logprob": -9999.0}]}
    ids = {"choices": [], "sglext": {"input_ids": [1], "output_ids": [[5]]}}
    stream = sse(chunk({"content": "a"}, logprobs={"content": [alternative]}), chunk({}, "stop"), ids)
    assert turn(stream).untrainable_reason is None


def test_the_clients_body_is_json_however_odd_the_logprobs_are():
    """K7."""

    def fail(constant: str) -> None:
        raise AssertionError(constant)

    raw = whole("x", [1], entries(-0.5)).replace(b"-0.5", b"NaN")
    forward = prepare(CHAT, {"messages": []}, TURN, Recipient(), capturing=True)
    assert json.loads(filter_body(raw, forward.cuts), parse_constant=fail)["choices"]


def test_arguments_stay_the_text_that_the_model_wrote():
    """K13, P7."""
    written = '{"path": "a",  "content": "x", "n": 1.0}'
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": written}}
    history = [
        user("u"),
        assistant(None, tool_calls=[call]),
        {"role": "tool", "tool_call_id": "c1", "content": "7"},
    ]
    sent = json.loads(prepare(CHAT, {"messages": history}, TURN, Recipient(), capturing=True).body)
    assert sent["messages"][1]["tool_calls"][0]["function"]["arguments"] == written
    reply = whole(None, [1], entries(-0.1), "tool_calls", message={"content": None, "tool_calls": [call]})
    made = turn(reply, history)
    assert made.tool_calls[0]["function"]["arguments"] == written


def test_a_span_keeps_its_oldest_and_newest_version():
    """K16."""
    spans = [{"version": "41", "start": 0, "end": 30}, {"version": "42", "start": 30, "end": 64}]
    reply = json.loads(whole("x", [1], entries(-0.1)))
    reply["choices"][0]["meta_info"]["weight_versions"] = spans
    made = turn(json.dumps(reply).encode())
    assert (made.policy_version_min, made.policy_version_max) == (41, 42)
    reply["choices"][0]["meta_info"] |= {"weight_versions": None, "weight_version": "default"}
    made = turn(json.dumps(reply).encode(), version_min=None, version_max=None)
    assert (made.policy_version_min, made.untrainable_reason) == (None, "version_unknown")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
def test_logprobs_of_the_prompt_are_never_asked_for(dialect, stream):
    """K18: they would cost the engine its prefix cache."""
    body = {"model": "m", "messages": [user("hi")], "stream": stream}
    forward = prepare(CHAT, body, TURN, Recipient(dialect=dialect), capturing=True)
    added = {name.partition(".")[0] for name in forward.added} - {"stream_options", "rid"}
    assert added <= {
        "logprobs", "return_token_ids", "return_meta_info",
        "return_input_ids_in_sglext", "return_output_ids_in_sglext",
    }  # fmt: skip
    assert not {"prompt_logprobs", "logprob_start_len", "echo"} & json.loads(forward.body).keys()


def test_arguments_with_wide_characters_survive_every_cut():
    """S2."""
    pieces = ['{"p":', '"那🚀', '"}']
    frames = b"".join(
        event(chunk({"tool_calls": [{"index": 0, "function": {"name": "f" * (not n), "arguments": piece}}]}))
        for n, piece in enumerate(pieces)
    ) + event(chunk({}, "tool_calls"))
    for cut in range(1, len(frames)):
        (answer,) = fold_events(Parser(), [frames[:cut], frames[cut:]]).answers
        assert answer.tool_calls[0]["function"]["arguments"] == '{"p":"那🚀"}'
        events = StreamFilter(prepare(CHAT, {"stream": True}, TURN, Recipient(), capturing=True).cuts)
        assert events.feed(frames[:cut]) + events.feed(frames[cut:]) == frames


VLLM_STREAM = sse(
    chunk({"role": "assistant", "content": ""}, logprobs=None, token_ids=None) | {"prompt_token_ids": [1, 2]},
    chunk({"content": "a"}, logprobs={"content": [{"token": "a", "logprob": -0.1}]}, token_ids=[7]),
    chunk({"content": "b"}, logprobs={"content": [{"token": "b", "logprob": -0.2}]}, token_ids=[8]),
    chunk(
        {"content": ""},
        "stop",
        logprobs={"content": [{"token": "", "logprob": -0.3}]},
        token_ids=[9],
        stop_reason=9,
    ),
    {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 3}},
    "[DONE]",
)


def test_vllms_streams_give_ids_and_logprobs_chunk_by_chunk():
    made = turn(VLLM_STREAM)
    assert (made.prompt_ids.tolist(), made.response_ids.tolist()) == ([1, 2], [7, 8, 9])
    assert made.response_logprobs.tolist() == pytest.approx([-0.1, -0.2, -0.3])
    assert (made.response_text, made.matched_stop, made.untrainable_reason) == ("ab", "9", None)


def test_what_vllm_was_asked_for_is_taken_out_of_its_stream():
    forward = prepare(CHAT, {"model": "m", "stream": True}, TURN, Recipient(dialect="vllm"), capturing=True)
    assert json.loads(forward.body) == {
        "model": "m", "stream": True, "return_token_ids": True, "logprobs": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert (forward.captures, forward.abortable) == (True, False)
    events = StreamFilter(forward.cuts)
    shown = events.feed(VLLM_STREAM)
    assert events.ids_seen
    objects = [json.loads(line[6:]) for line in shown.split(b"\n") if line]
    assert [made["choices"][0]["delta"].get("content") for made in objects] == ["", "a", "b", ""]
    assert all(made["choices"][0].get("token_ids") is None for made in objects)
    assert all(made["choices"][0]["logprobs"] is None for made in objects)
    assert all("prompt_token_ids" not in made and "usage" not in made for made in objects)


def test_a_whole_answer_of_vllm_has_its_ids_beside_its_logprobs():
    choice = {
        "index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop",
        "logprobs": {"content": [{"token": "a", "logprob": -0.1}]}, "token_ids": [7],
    }  # fmt: skip
    raw = json.dumps({"id": "c", "choices": [choice], "prompt_token_ids": [1, 2]}).encode()
    made = turn(raw)
    assert (made.prompt_ids.tolist(), made.response_ids.tolist(), made.untrainable_reason) == (
        [1, 2],
        [7],
        None,
    )
    forward = prepare(CHAT, {"model": "m"}, TURN, Recipient(dialect="vllm"), capturing=True)
    shown = json.loads(filter_body(raw, forward.cuts))
    assert shown["choices"][0] == {k: v for k, v in choice.items() if k != "token_ids"} | {"logprobs": None}
    assert shown.keys() == {"id", "choices"}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_plain_server_gets_the_clients_request_and_its_own_adapter_never(path):
    body = {"model": "m", "messages": [user("hi")], "stream": True}
    forward = prepare(path, body, TURN, Recipient(version=3, dialect="plain"), capturing=True)
    assert (json.loads(forward.body), forward.added, forward.captures) == (body, (), False)


def test_a_completions_stream_gives_ids():
    """P22."""
    one = {"index": 0, "text": "a", "token_ids": [4], "finish_reason": None}
    last = {"index": 0, "text": "", "token_ids": [5], "finish_reason": "stop"}
    (answer,) = fold(sse({"choices": [one]}, {"choices": [last], "prompt_token_ids": [1]}, "[DONE]")).answers
    assert (answer.response_ids, answer.prompt_ids, answer.text) == ((4, 5), (1,), "a")
