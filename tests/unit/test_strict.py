"""Strict tools that a model may call: what of an answer was sampled freely, by what was measured."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dukou.store import spans
from gateway.drain import trainable
from gateway.drain.assemble import assemble
from gateway.parse.reply import Answer
from gateway.spool.format import Kind, Record
from tests.fakes.spooled import chunk, reply_meta, request_body, request_meta, sse, turn_id, user

TURN = turn_id(1000.0)
QWEN = {"parser": "qwen", "grammar": "xgrammar"}
TOOL = {"type": "function", "function": {"name": "weather"}}
STRICT = {"type": "function", "function": {"name": "weather", "strict": True}}
TAGS = trainable.MEASURED["qwen", "xgrammar"]
#: Tokens of SmolLM2 in an answer under xgrammar 0.2.7, those in the lower lines with some of the vocabulary
#: masked, as its own bitmask had it: 16 tokens at the trigger's last one, all but a few from there on.
FREE, CALL = ("Hi", " there", ".", " <", "tool", "_", "call"), (
    ">", "\n", '{"', "name", '":"', "weather", '",', ' "', "arguments", '":', '{"', "city", '":', ' "',
    "L", "ima", '"', "}}", "\n", "</", "tool", "_", "call", ">",
)  # fmt: skip
AFTER = (" Done", "<|im_end|>")


def answer(*texts, tool_calls=()):
    return Answer(0, response_ids=tuple(range(len(texts))), token_texts=texts, tool_calls=tool_calls)


def places(*texts, **more):
    mask = trainable.masked(answer(*texts, **more), TAGS)
    return None if mask is None else np.flatnonzero(mask).tolist()


def test_a_call_is_masked_from_the_token_after_the_nearly_whole_trigger_to_its_closing_tag():
    first = len(FREE)
    masked = list(range(first, first + len(CALL)))
    assert places(*FREE, *CALL, *AFTER) == masked
    assert places(*FREE, *AFTER) == [
        first
    ]  # "<tool_call Done": 16 tokens were masked where " Done" was sampled
    assert places("a", " <", "tool", "_", "calling", " b") == [4]
    assert places(*FREE) == []
    assert places(*FREE[:-1], *AFTER) == []


def test_each_of_several_calls_is_masked_and_what_is_between_is_not():
    texts = (*FREE, *CALL, "\n", *FREE[3:], *CALL, *AFTER)
    one, other = len(FREE), len(FREE) + len(CALL) + 5
    assert places(*texts) == [*range(one, one + len(CALL)), *range(other, other + len(CALL))]


def test_a_call_that_is_cut_off_is_masked_to_the_end():
    for length in range(1, len(CALL)):
        assert places(*FREE, *CALL[:length]) == list(range(len(FREE), len(FREE) + length))


def test_a_trigger_in_one_token_is_masked_with_it():
    texts = ("Hi", "<tool_call>", "\n", '{"name":"f", "arguments":{}', "}\n", "</tool_call>", "<|im_end|>")
    assert places(*texts) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("given_", "why"),
    [
        (Answer(0, response_ids=(1, 2)), "no texts"),
        (Answer(0, response_ids=(1, 2), token_texts=("a",)), "fewer texts than tokens"),
        (Answer(0, token_texts=("a",)), "no ids"),
        (answer("a", "b", tool_calls=({"id": "1"},)), "a call that no token shows"),
        (answer("<tool_call", " x", tool_calls=({"id": "1"},)), "a call that no token shows"),
        (answer("<tool_call>", "weather"), "a call that the grammar would not let pass"),
        (answer("<tool_call>", '{"name": "f"}'), "a call that the grammar would not let pass"),
    ],
)
def test_where_the_masked_tokens_cannot_be_told_the_answer_is_constrained(given_, why):
    assert trainable.masked(given_, TAGS) is None, why
    assert trainable.decide("free", {"tools": [STRICT]}, QWEN, given_) == ("constrained", None)


@pytest.mark.parametrize(
    ("body", "calling", "expected"),
    [
        ({"tools": [STRICT]}, QWEN, "free"),
        (
            {"tools": [TOOL, STRICT], "tool_choice": "auto"},
            {"parser": "qwen25", "grammar": "xgrammar"},
            "free",
        ),
        ({"tools": [STRICT]}, {"parser": "qwen", "grammar": "llguidance"}, "constrained"),
        ({"tools": [STRICT]}, {"parser": "hermes", "grammar": "xgrammar"}, "constrained"),
        ({"tools": [STRICT]}, {"parser": None, "grammar": None}, "constrained"),
        ({"tools": [STRICT]}, None, "constrained"),
        ({"tools": [STRICT], "tool_choice": "none"}, None, "free"),
        ({"tools": [TOOL]}, None, "free"),
        ({"tools": [TOOL]}, {"parser": "hermes", "grammar": "xgrammar"}, "free"),
        ({"tools": [TOOL]}, {"parser": "glm47", "grammar": "xgrammar"}, "constrained"),
        ({"tools": [TOOL]}, {"parser": "kimi_k3", "grammar": "xgrammar"}, "constrained"),
        ({"tools": [TOOL], "tool_choice": "none"}, {"parser": "glm47", "grammar": "xgrammar"}, "free"),
        ({}, {"parser": "glm47", "grammar": "xgrammar"}, "free"),
        ({}, {"parser": "beam", "grammar": "xgrammar"}, "constrained"),
        ({"tools": [{"function": {"strict": "true"}}]}, None, "constrained"),
        ({"tools": [{"function": {"strict": False}}, None, {"function": 3}]}, None, "free"),
        ({"messages": [{"role": "system", "tools": [STRICT]}]}, None, "constrained"),
        ({"messages": [{"role": "user", "tools": [STRICT]}, 3]}, None, "free"),
        ({"tools": {"a": 1}, "messages": "x"}, QWEN, "free"),
    ],
)
def test_a_plain_answer_is_free_where_the_parser_was_measured(body, calling, expected):
    assert trainable.decide("free", body, calling, answer("Lima", " is", " warm")) == (expected, None)


def test_an_answer_with_a_call_is_trained_without_it_whatever_else_its_class():
    for found in ("free", "truncated"):
        kept, trained = trainable.decide(found, {"tools": [STRICT]}, QWEN, answer(*FREE, *CALL, *AFTER))
        assert (kept, trained.tolist()) == (found, [0, 7, 31, 33])
    for found in ("greedy", "constrained", None):
        assert trainable.decide(found, {"tools": [STRICT]}, QWEN, answer(*FREE, *CALL)) == (found, None)


def test_an_answer_that_is_masked_whole_is_constrained():
    assert trainable.decide("free", {"tools": [STRICT]}, QWEN, answer("<tool_call>", "\n")) == (
        "constrained",
        None,
    )


ARGUMENTS = st.dictionaries(
    st.text(max_size=3),
    st.sampled_from(["x", "</tool_call>", "}\n</tool_call>", '<tool_call>\n{"name":"', "é🚀", '"}}']),
    max_size=2,
)
PLAIN = st.text("<>tol_ca \n{}/é", max_size=12).filter(lambda text: "<tool_call" not in text)


@given(PLAIN, st.lists(st.tuples(ARGUMENTS, PLAIN), max_size=3), st.data())
def test_a_token_is_masked_where_it_has_a_character_of_a_call_after_the_nearly_whole_trigger(
    first, calls, data
):
    text, expected = first, [False] * len(first)
    for arguments, plain in calls:
        inside = (
            '>\n{"name":"f", "arguments":' + json.dumps(arguments, ensure_ascii=False) + "}\n</tool_call>"
        )
        text += "<tool_call" + inside + "." + plain
        expected += [False] * 10 + [True] * len(inside) + [False] * (1 + len(plain))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(text) - 1)))))
    edges = list(zip([0, *cuts], [*cuts, len(text)], strict=True))
    masked = trainable.masked(answer(*(text[a:b] for a, b in edges)), TAGS)
    assert masked.tolist() == [any(expected[a:b]) for a, b in edges]
    assert spans.positions(spans.pack(masked), len(masked)).tolist() == np.flatnonzero(masked).tolist()


def row(reply, calling=QWEN, **body):
    asked = Record(Kind.REQUEST, request_meta(TURN, 1000.0), request_body([user("hi")], **body))
    meta = reply_meta(TURN, 1001.0, tool_calling=calling)
    return assemble(asked, Record(Kind.REPLY, meta, reply), 1).rows[0]


TEXTS = (*FREE, *CALL, *AFTER)
MADE = {"index": 0, "id": "c1", "function": {"name": "weather", "arguments": '{"city": "Lima"}'}}


def streamed(texts=TEXTS, call=MADE):
    entries = [{"token": text, "logprob": -0.5} for text in texts]
    return sse(
        chunk({"content": "Hi there. "}, logprobs={"content": entries[:5]}),
        chunk({"tool_calls": [call]}, logprobs={"content": entries[5:]}),
        chunk({}, "tool_calls"),
        {"choices": [], "sglext": {"input_ids": [1], "output_ids": [list(range(len(TEXTS)))]}},
        {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": len(TEXTS)}},
        "[DONE]",
    )


def whole(in_meta):
    """A JSON reply; the texts stand in meta_info alone, or beside the log-probabilities of the chat form."""
    entries = [[-0.5, token, text if in_meta else None] for token, text in enumerate(TEXTS)]
    content = [{"token": text, "logprob": -0.5} for text in TEXTS]
    choice = {
        "index": 0, "message": {"content": None, "tool_calls": [MADE]}, "finish_reason": "tool_calls",
        "prompt_token_ids": [1], "response_token_ids": list(range(len(TEXTS))),
        "meta_info": {"output_token_logprobs": entries},
        "logprobs": None if in_meta else {"content": content},
    }  # fmt: skip
    return json.dumps({"choices": [choice]}).encode()


@pytest.mark.parametrize("reply", [streamed(), whole(in_meta=True), whole(in_meta=False)])
def test_a_turn_says_which_of_its_tokens_may_be_trained(reply):
    made = row(reply, tools=[STRICT])
    assert (made.sampling_class, made.untrainable_reason) == ("free", None)
    assert made.trained_tokens.tolist() == [0, 7, 31, 33]
    assert not np.isnan(made.response_logprobs).any()
    plain = row(reply, tools=[TOOL])
    assert (plain.sampling_class, plain.trained_tokens, plain.untrainable_reason) == ("free", None, None)


def test_a_turn_whose_tokens_have_no_text_or_whose_parser_is_unknown_is_not_trained():
    assert row(whole(in_meta=True).replace(b'"Hi"', b"null"), tools=[STRICT]).untrainable_reason == (
        "sampling_constrained"
    )
    for calling in (None, {}, {"parser": "llama3", "grammar": "xgrammar"}):
        made = row(streamed(), calling, tools=[STRICT])
        assert (made.untrainable_reason, made.trained_tokens) == ("sampling_constrained", None)
    forced = row(streamed(), tools=[STRICT], tool_choice="required")
    assert (forced.sampling_class, forced.trained_tokens) == ("constrained", None)
