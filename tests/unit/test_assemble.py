import json
from dataclasses import replace
from uuid import UUID

import pytest

from dukou.store.states import REASONS
from gateway.drain.assemble import assemble, choice_id
from gateway.spool.format import Kind, Record
from tests.fakes.spooled import (
    assistant,
    chunk,
    records,
    reply_body,
    reply_meta,
    request_body,
    request_meta,
    sse,
    turn_id,
    user,
)

TURN = turn_id(1000.0)


def draft(body=None, reply=None, request=None, **meta):
    """The draft of a request with `request` meta changes, its body, and a reply with `meta` changes."""
    asked = Record(
        Kind.REQUEST,
        request_meta(TURN, 1000.0, **(request or {})),
        request_body([user("hi")]) if body is None else body,
    )
    answered = Record(
        Kind.REPLY, reply_meta(TURN, 1001.0, **meta), reply_body("X") if reply is None else reply
    )
    return assemble(asked, answered, 1)


def row(*args, **kwargs):
    return draft(*args, **kwargs).rows[0]


def shown(made):
    """The messages as people see them."""
    return [json.loads(piece.readable or piece.body) for piece in made.body.messages]


def test_a_captured_turn_is_trainable_and_complete():
    made = row()
    assert made.untrainable_reason is None
    assert (made.response_text, made.finish_reason, made.status) == ("X", "stop", "ok")
    assert (made.prompt_ids.tolist(), made.response_ids.tolist()) == ([1, 2, 3], [11, 12])
    assert made.response_logprobs.tolist() == pytest.approx([-0.1, -0.25])
    assert (made.policy_version_min, made.policy_version_max, made.capture) == (3, 3, "sampled")
    assert (made.temperature, made.sampling_class) == (1.0, "free")
    assert (made.started_at.timestamp(), made.finished_at.timestamp()) == (1000.0, 1001.0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"request": {"path": "/v1/embeddings"}}, "endpoint"),
        ({"request": {"turn_type": "side"}}, "side"),
        ({"outcome": "client_disconnect"}, "status"),
        ({"reply": reply_body("X", finish=None)}, "status"),
        ({"reply": reply_body("X", finish="abort")}, "status"),
        ({"reply": b""}, "status"),
        ({"body": request_body([user("hi")], store=False)}, "store_false"),
        ({"version_min": None, "version_max": None}, "version_unknown"),
        ({"body": request_body([user("hi")], temperature=0)}, "sampling_greedy"),
        ({"body": request_body([user("hi")], logit_bias={"1": 2})}, "sampling_constrained"),
        (
            {"reply": reply_body("X").replace(b"response_token_ids", b"other").replace(b"meta_info", b"m")},
            "no_ids",
        ),
        ({"reply": reply_body("X").replace(b"prompt_token_ids", b"other")}, "no_ids"),
        ({"reply": reply_body("X").replace(b"meta_info", b"m")}, "no_logprobs"),
        (
            {"reply": reply_body("X").replace(b"[-0.25, 12, null]", b"[-0.25, 12], [1, 2]")},
            "logprob_count_mismatch",
        ),
        ({"reply": reply_body("X").replace(b"-0.25", b"NaN")}, "logprob_not_finite"),
        ({"reply": reply_body("X").replace(b"-0.25", b"1e308")}, "logprob_not_finite"),
        ({"reply": reply_body("X").replace(b"-0.25", b"5.0")}, "logprob_impossible"),
        ({"reply": reply_body("X").replace(b'tokens": 2', b'tokens": 3')}, "token_count_mismatch"),
        ({"reply": reply_body("X", finish="content_filter")}, "ending"),
        ({"reply": reply_body("X", finish="eos")}, "ending"),
    ],
)
def test_each_reason_against_training_is_found_and_has_words(changes, reason):
    """K5, K8, K15."""
    assert row(**changes).untrainable_reason == reason
    assert reason in REASONS


@pytest.mark.parametrize("finish", ["stop", "length", "tool_calls", "function_call"])
def test_the_usual_endings_are_trained(finish):
    made = row(reply=reply_body("X", finish=finish))
    assert (made.finish_reason, made.untrainable_reason) == (finish, None)


@pytest.mark.parametrize(
    ("said", "stopped_by", "matched_stop"),
    [
        (b'"matched_stop": 151645', 151645, "151645"),
        (b'"matched_stop": "151645"', "151645", "151645"),
        (b'"stop_reason": "a\\u0000"', "a\u2400", "a\u2400"),
        (b'"matched_stop": [1]', None, None),
        (b'"matched_stop": true', None, None),
    ],
)
def test_what_ended_an_answer_keeps_its_type(said, stopped_by, matched_stop):
    made = row(reply=reply_body("X").replace(b'"index": 0', b'"index": 0, ' + said))
    assert (made.stopped_by, made.matched_stop) == (stopped_by, matched_stop)
    assert type(made.stopped_by) is type(stopped_by)


def test_the_engines_native_form_says_what_ended_an_answer():
    for matched, expected in ((151645, 151645), ("END", "END"), ([7], None)):
        native = json.dumps({"type": "stop", "matched": matched}).encode()
        made = row(reply=reply_body("X").replace(b'"stop"', native))
        assert (made.finish_reason, made.stopped_by, made.untrainable_reason) == ("stop", expected, None)


def test_how_a_cut_distribution_was_sampled_is_recorded_and_left_to_the_learner():
    made = row(body=request_body([user("hi")], top_p=0.5))
    assert (made.sampling_class, made.untrainable_reason) == ("truncated", None)


def test_what_the_engine_took_for_left_out_fields_is_in_the_row():
    """K15."""
    qwen = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
    made = row(sampling_defaults=qwen)
    assert (made.sampling_class, made.temperature, made.untrainable_reason) == ("truncated", 0.6, None)
    assert (made.sampling, made.sampling_defaults) == ({}, qwen)
    plain = row(sampling_defaults=qwen, request={"path": "/v1/completions"})
    assert (plain.sampling_defaults, plain.sampling_class, plain.temperature) == (None, None, None)


@pytest.mark.parametrize("known", [None, "model", []])
def test_an_answer_of_unknown_sampling_is_not_said_to_be_free(known):
    """K15: so are records of a gateway that did not ask for it."""
    made = row(sampling_defaults=known)
    assert (made.sampling_class, made.temperature, made.sampling_defaults) == (None, None, None)
    assert made.untrainable_reason == "sampling_unknown"
    stated = {"temperature": 1, "top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1}
    made = row(sampling_defaults=known, body=request_body([user("hi")], **stated))
    assert (made.sampling_class, made.temperature, made.untrainable_reason) == ("free", 1.0, None)
    made = row(sampling_defaults=known, body=request_body([user("hi")], temperature=0))
    assert made.untrainable_reason == "sampling_greedy"


def test_an_unknown_version_is_null_and_not_0():
    """K16."""
    made = row(version_min=None, version_max=None)
    assert (made.policy_version_min, made.policy_version_max) == (None, None)


def test_a_reply_that_states_its_version_is_believed_before_the_relay():
    body = reply_body("X").replace(b'"meta_info": {', b'"meta_info": {"weight_version": "9", ')
    assert (row(reply=body).policy_version_min, row(reply=body).policy_version_max) == (9, 9)


def test_an_adapters_name_outranks_the_label_of_the_engine():
    body = reply_body("X").replace(b'"meta_info": {', b'"meta_info": {"weight_version": "0", ')
    made = row(reply=body, adapter="default-v4", version_max=5)
    assert (made.policy_version_min, made.policy_version_max) == (4, 4)


def test_a_model_whose_name_ends_in_a_version_is_no_adapter():
    assert row(reply=reply_body("X").replace(b'"id": "c"', b'"model": "deepseek-v9"')).policy_version_min == 3


def test_a_label_that_is_no_number_leaves_what_the_relay_knew():
    """K16."""
    body = reply_body("X").replace(b'"meta_info": {', b'"meta_info": {"weight_version": "default", ')
    assert row(reply=body).policy_version_min == 3


@pytest.mark.parametrize(
    ("stream", "status", "error"),
    [
        (sse(chunk({"content": "a"}), chunk({"content": "b"})), "truncated", "no finish reason"),
        (sse(chunk({"content": "a"}), chunk({}, "stop")), "ok", None),
        (sse(chunk({"content": "a"}), "[DONE]"), "truncated", "no finish reason"),
        (sse(chunk({"content": "a"}), {"error": {"message": "boom"}}, "[DONE]"), "upstream_error", "boom"),
        (b"", "truncated", "no answer"),
    ],
)
def test_a_status_is_ok_only_where_an_answer_ended(stream, status, error):
    """S8, S11."""
    made = row(reply=stream, request={"stream": True})
    assert made.status == status
    assert (made.error is None) if error is None else (error in made.error)


def test_what_the_relay_saw_outranks_a_finished_looking_reply():
    made = row(outcome="upstream_error", error="connection reset")
    assert (made.status, made.error) == ("upstream_error", "connection reset")


def test_a_request_without_reply_is_interrupted():
    request, _ = records([user("hi")])
    made = assemble(request, None, 1).rows[0]
    assert (made.status, made.finished_at, made.untrainable_reason) == ("interrupted", None, "status")
    assert (made.response_text, made.history_hash, made.capture) == (None, None, "none")


def test_a_request_of_n_choices_is_a_row_each_with_ids_that_never_change():
    body = json.loads(reply_body("X"))
    body["choices"].append(
        body["choices"][0] | {"index": 1, "message": {"role": "assistant", "content": "Y"}}
    )
    rows = draft(reply=json.dumps(body).encode()).rows
    again = draft(reply=json.dumps(body).encode()).rows
    assert [made.response_text for made in rows] == ["X", "Y"]
    assert [made.id for made in rows] == [made.id for made in again] == [UUID(TURN), choice_id(UUID(TURN), 1)]
    assert {made.request_id for made in rows} == {UUID(TURN)}
    assert (rows[1].id.version, rows[1].id.variant, rows[1].id.hex[:12]) == (
        7,
        "specified in RFC 4122",
        TURN[:12],
    )
    assert [made.usage for made in rows] == [{"completion_tokens": 2}, None]


def test_nul_and_lone_surrogates_are_marked_and_the_request_stays_exact():
    exact = b'{"messages": [{"role": "user", "content": "a\\u0000b\\ud83d", "k\\u0000": "C:\\\\u0000dir"}]}'
    made = row(
        body=exact, reply=reply_body("x\x00y", tool_calls=[{"function": {"name": "f", "arguments": "\x00"}}])
    )
    assert made.body.whole() == exact
    assert shown(made) == [{"role": "user", "content": "a␀b�", "k␀": "C:\\u0000dir"}]
    assert made.response_text == "x␀y"
    assert made.tool_calls[0]["function"]["arguments"] == "␀"
    assert made.text_altered
    assert not row().text_altered


@pytest.mark.parametrize("body", [b"", b"not json", b"[1]", b'"x"', b"\xff\xfe", b"[" * 100_000])
def test_a_body_that_is_no_object_is_recorded_all_the_same(body):
    made = row(body=body, reply=b'{"error": {"message": "bad"}}', outcome="rejected", http_status=400)
    assert (made.body.messages, made.sampling, made.status, made.error) == (None, None, "rejected", "bad")
    assert made.body.whole() == body


def test_large_integers_and_key_order_of_the_messages_are_kept():
    made = row(body=b'{"messages": [{"role": "user", "z": 12345678901234567890123, "a": 1.0}]}')
    kept = [("role", "user"), ("z", 12345678901234567890123), ("a", 1.0)]
    assert list(shown(made)[0].items()) == kept


def test_an_error_page_is_quoted():
    made = row(reply=b"<html>bad gateway</html>", outcome="upstream_error", http_status=502)
    assert made.error == "<html>bad gateway</html>"


def test_a_session_in_the_path_is_no_part_of_the_endpoint():
    assert row(request={"path": "/sessions/s1/v1/chat/completions"}).endpoint == "/v1/chat/completions"
    assert row(request={"path": "/v1/chat/completions?x=1"}).untrainable_reason is None


def test_an_answer_digest_is_that_of_the_message_that_comes_back():
    answered = draft(reply=reply_body("<think>R</think>\n\nX")).rows[0]
    following = draft(body=request_body([user("hi"), assistant("X"), user("more")])).request
    assert following.prefixes[0].history == answered.history_hash
    assert following.prefixes[0].messages == 2


def test_a_person_is_not_a_session():
    made = draft(body=request_body([user("hi")], user="alice"))
    assert (made.request.user_name, made.request.session) == ("alice", None)
    assert replace(made.rows[0], user_name=None) != made.rows[0]
