"""Ids that a reply gives are as many as it says, or its turns are not trained."""

import json
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dukou.store.states import REASONS
from gateway.drain.assemble import assemble
from gateway.parse.reply import fold
from gateway.parse.tokens import contradicts
from gateway.spool.format import Kind, Record
from tests.fakes.spooled import chunk, reply_body, reply_meta, request_body, request_meta, sse, turn_id, user

TURN = turn_id(1000.0)
PROMPT = [1, 2, 3]


def rows(reply):
    asked = Record(Kind.REQUEST, request_meta(TURN, 1000.0), request_body([user("hi")]))
    return assemble(asked, Record(Kind.REPLY, reply_meta(TURN, 1001.0), reply), 1).rows


def said(*replies):
    """Whether each JSON reply, given as its changes to one good choice and its usage, contradicts itself."""
    for choice, usage in replies:
        body = json.loads(reply_body("X"))
        body["choices"][0] |= choice
        body["usage"] = usage
        yield contradicts(fold(json.dumps(body).encode()))


def meta(**counts):
    return {"meta_info": {"output_token_logprobs": [[-0.1, 11, None], [-0.25, 12, None]], **counts}}


def test_counts_are_compared_where_they_are_stated_and_are_numbers():
    agreeing = [
        ({}, {"completion_tokens": 2, "prompt_tokens": 3}),
        ({}, None),
        ({}, {"completion_tokens": None, "prompt_tokens": "7"}),
        ({}, {"completion_tokens": True}),
        (meta(completion_tokens=2, prompt_tokens=3), {}),
    ]
    differing = [
        ({}, {"completion_tokens": 3}),
        ({}, {"completion_tokens": 0}),
        ({}, {"completion_tokens": 2, "prompt_tokens": 4}),
        (meta(completion_tokens=1), {"completion_tokens": 2}),
        (meta(prompt_tokens=2), {}),
    ]
    assert not any(said(*agreeing))
    assert all(said(*differing))


def test_a_prompt_of_kimi_k3_is_counted_without_the_ids_that_its_answers_begin_after():
    body = reply_body("X").replace(b'{"completion_tokens"', b'{"prompt_tokens": 0, "completion_tokens"')
    assert contradicts(fold(body))
    assert contradicts(fold(body), "qwen")
    assert not contradicts(fold(body), "kimi_k3")


def test_of_several_answers_the_sum_is_stated_and_all_are_in_doubt():
    body = json.loads(reply_body("X"))
    body["choices"].append(body["choices"][0] | {"index": 1})
    body["usage"] = {"completion_tokens": 4, "prompt_tokens": 3}
    assert [row.untrainable_reason for row in rows(json.dumps(body).encode())] == [None, None]
    body["choices"].pop()
    assert [row.untrainable_reason for row in rows(json.dumps(body).encode())] == ["token_count_mismatch"]
    body["choices"].append({**body["choices"][0], "index": 1, "response_token_ids": [], "meta_info": None})
    found = [row.untrainable_reason for row in rows(json.dumps(body).encode())]
    assert found == ["token_count_mismatch", "no_ids"]


@dataclass(frozen=True)
class Fault:
    """What goes wrong with the chunks `at` of one choice."""

    kind: str  # lost | repeated | cumulative
    what: str  # ids | logprobs | both | chunk
    choice: int
    at: frozenset[int]


FAULTS = st.builds(
    Fault,
    st.sampled_from(["lost", "repeated", "cumulative"]),
    st.sampled_from(["ids", "logprobs", "both", "chunk"]),
    st.integers(0, 2),
    st.frozensets(st.integers(0, 3), min_size=1),
)
#: Of each choice: the tokens of each of its chunks.
ANSWERS = st.lists(
    st.lists(
        st.lists(st.tuples(st.integers(4, 999), st.floats(-20, 0, width=32)), min_size=1, max_size=3),
        min_size=1,
        max_size=4,
    ),
    min_size=1,
    max_size=3,
)


def pieces(chunks, fault, mine, what):
    """Of each chunk, the tokens whose ids (or log-probabilities) it brings; None: the chunk does not come."""
    for at, own in enumerate(chunks):
        is_hit = fault is not None and mine and at in fault.at and fault.what in (what, "both", "chunk")
        if not is_hit:
            yield own
        elif fault.kind == "lost":
            yield None if fault.what == "chunk" else []
        elif fault.kind == "repeated":
            yield own + own
        else:
            yield [token for before in chunks[: at + 1] for token in before]


def stream(answers, fault, ids_beside):
    """A stream of these answers. `ids_beside`: as SGLang has it, ids in one chunk at the end, not in each."""
    payloads, beside = [], []
    for index, chunks in enumerate(answers):
        mine = fault is not None and fault.choice % len(answers) == index
        told = pieces(chunks, fault, mine, "ids")
        listed = pieces(chunks, fault, mine, "logprobs")
        ids = []
        for tokens, entries in zip(told, listed, strict=True):
            if tokens is None or entries is None:
                continue
            ids += [token for token, _ in tokens]
            content = [{"token": "t", "logprob": value} for _, value in entries]
            more = {} if ids_beside else {"token_ids": [token for token, _ in tokens]}
            payloads.append(chunk({"content": "x"}, index=index, logprobs={"content": content}, **more))
        whole = [token for own in chunks for token, _ in own]
        beside.append(ids if mine and fault.what == "ids" else whole)
        payloads.append(chunk({}, "stop", index))
    extension = {"input_ids": PROMPT, **({"output_ids": beside} if ids_beside else {})}
    counted = sum(len(own) for chunks in answers for own in chunks)
    usage = {"prompt_tokens": len(PROMPT), "completion_tokens": counted}
    return sse(*payloads, {"choices": [], "sglext": extension}, {"choices": [], "usage": usage}, "[DONE]")


def truth(chunks):
    return [token for own in chunks for token in own]


@given(ANSWERS, st.booleans())
def test_a_whole_stream_is_trained_as_it_was_sampled(answers, ids_beside):
    made = rows(stream(answers, None, ids_beside))
    assert [row.untrainable_reason for row in made] == [None] * len(answers)
    for row, chunks in zip(made, answers, strict=True):
        assert list(zip(row.response_ids.tolist(), row.response_logprobs.tolist(), strict=True)) == truth(
            chunks
        )


@given(ANSWERS, FAULTS, st.booleans())
def test_a_stream_with_lost_repeated_or_cumulative_chunks_is_exactly_right_or_untrainable(
    answers, fault, ids_beside
):
    for row, chunks in zip(rows(stream(answers, fault, ids_beside)), answers, strict=True):
        if row.untrainable_reason is None:
            found = zip(row.response_ids.tolist(), row.response_logprobs.tolist(), strict=True)
            assert list(found) == truth(chunks)
        else:
            assert row.untrainable_reason in REASONS


def test_chunks_lost_with_ids_and_logprobs_alike_are_found():
    """What no comparison of the two can find: only the count tells."""
    answers = [[[(5, -0.5)], [(6, -0.25)], [(7, -1.0)]]]
    for kind in ("lost", "repeated", "cumulative"):
        fault = Fault(kind, "both", 0, frozenset({1}))
        (row,) = rows(stream(answers, fault, False))
        assert (row.untrainable_reason, len(row.response_ids)) == (
            "token_count_mismatch",
            {"lost": 2, "repeated": 4, "cumulative": 4}[kind],
        )


@pytest.mark.parametrize("index", [2**40, 2**31, -1, True, "0", 1.0, 10**400, {}])
def test_an_index_that_no_choice_has_makes_the_reply_an_error_and_no_exception(index):
    good, odd = json.loads(reply_body("X")), json.loads(reply_body("Y"))["choices"][0]
    good["choices"].append(odd | {"index": index})
    (row,) = rows(json.dumps(good).encode())
    assert (row.choice_index, row.response_text, row.status) == (0, "X", "upstream_error")
    assert row.untrainable_reason == "status"
    assert "index" in row.error


def test_more_choices_than_anybody_asks_for_are_an_error(monkeypatch):
    monkeypatch.setattr("gateway.parse.reply._CHOICES", 3)
    one = json.loads(reply_body("X"))["choices"][0]
    body = {"choices": [one | {"index": index} for index in range(5)]}
    made = rows(json.dumps(body).encode())
    assert [row.choice_index for row in made] == [0, 1, 2]
    assert {row.status for row in made} == {"upstream_error"}


@pytest.mark.parametrize("ids", [[1, None], [2**40], ["1"], [-1], "7", {"a": 1}])
def test_a_list_with_anything_but_ids_gives_no_ids(ids):
    tokens = [{"token": "t", "logprob": -0.5}]
    last = chunk({}, "stop", token_ids=ids, logprobs={"content": tokens})
    first = chunk({"content": "a"}, token_ids=[5], logprobs={"content": tokens})
    (row,) = rows(sse(first, last, {"choices": [], "sglext": {"input_ids": PROMPT}}, "[DONE]"))
    assert row.untrainable_reason in ("no_ids", "logprob_count_mismatch")
    extension = {"input_ids": PROMPT, "output_ids": [ids if isinstance(ids, list) else [ids]]}
    beside = chunk({"content": "a"}, "stop", logprobs={"content": tokens})
    (row,) = rows(sse(beside, {"choices": [], "sglext": extension}, "[DONE]"))
    assert row.untrainable_reason == "no_ids"
