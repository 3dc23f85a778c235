"""What is added to a request: only what the client did not set, and all of it is known again later."""

import json

import pytest

from gateway.relay.capture import CHAT, COMPLETIONS, Recipient, check, parse, prepare, with_system_role
from gateway.relay.errors import BadRequestError

ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TURN = "0" * 32
NOWHERE = Recipient()


def sent(body: dict, path: str = CHAT, recipient: Recipient = NOWHERE, capturing: bool = True) -> dict:
    return json.loads(prepare(path, body, TURN, recipient, capturing=capturing).body)


def test_streams_and_whole_answers_are_asked_in_the_engines_two_ways() -> None:
    whole, stream = sent(ASK), sent({**ASK, "stream": True})
    assert {"return_token_ids", "return_meta_info", "logprobs"} <= whole.keys()
    assert {"return_input_ids_in_sglext", "return_output_ids_in_sglext", "logprobs"} <= stream.keys()
    assert not {"return_token_ids", "return_meta_info"} & stream.keys()
    assert "stream_options" not in whole


def test_what_the_client_set_is_not_counted_as_added() -> None:
    body = {**ASK, "stream": True, "logprobs": True, "stream_options": {"include_usage": True, "x": 1}}
    forward = prepare(CHAT, body, TURN, Recipient(), capturing=True)
    assert not forward.cuts.logprobs
    assert not forward.cuts.usage
    assert json.loads(forward.body)["stream_options"] == {"include_usage": True, "x": 1}


def test_false_of_the_client_is_overruled_and_taken_out_again() -> None:
    forward = prepare(CHAT, {**ASK, "logprobs": False}, TURN, Recipient(), capturing=True)
    assert json.loads(forward.body)["logprobs"] is True
    assert forward.cuts.logprobs


def test_rid_salt_and_adapter_are_never_the_clients() -> None:
    body = {**ASK, "rid": "x", "cache_salt": "y", "lora_path": "z"}
    assert {k: sent(body)[k] for k in ("rid",)} == {"rid": TURN}
    assert not {"cache_salt", "lora_path"} & sent(body).keys()
    route = Recipient(version=0, adapter="default-v0")
    assert (sent(body, recipient=route)["cache_salt"], sent(body, recipient=route)["lora_path"]) == (
        "0",
        "default-v0",
    )


def test_an_engine_of_another_dialect_is_asked_for_nothing() -> None:
    assert sent(ASK, recipient=Recipient(dialect="plain"), capturing=False) == ASK


@pytest.mark.parametrize(
    ("prompt", "rid"), [("a", True), ([1, 2], True), (["a", "b"], False), ([[1], [2]], False)]
)
def test_only_single_prompts_carry_the_turn_id(prompt: object, rid: bool) -> None:
    assert ("rid" in sent({"model": "m", "prompt": prompt}, COMPLETIONS)) is rid


def test_several_choices_cannot_be_aborted() -> None:
    assert prepare(CHAT, ASK, TURN, Recipient(), capturing=True).abortable
    assert not prepare(CHAT, {**ASK, "n": 2}, TURN, Recipient(), capturing=True).abortable


def test_developer_messages_join_the_system_message_in_order() -> None:
    """P9."""
    body = {
        "messages": [
            {"role": "system", "content": "A"},
            {"role": "developer", "content": [{"type": "text", "text": "B"}]},
            {"role": "user", "content": "x"},
        ]
    }
    assert with_system_role(body)["messages"] == [
        {"role": "system", "content": "A\n\nB"},
        {"role": "user", "content": "x"},
    ]
    assert with_system_role(ASK) is ASK


def test_lone_surrogates_and_huge_integers_are_valid() -> None:
    body = parse(
        b'{"model": "m", "messages": [{"role": "user", "content": "\\ud83d"}], "seed": 123456789012345678901}'
    )
    assert sent(body)["messages"][0]["content"] == "\ud83d"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff\xfe{"])
def test_other_bodies_are_bad_requests(body: bytes) -> None:
    with pytest.raises(BadRequestError):
        parse(body)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n"])
def test_room_for_no_token_is_refused_and_the_engines_default_is_not(name: str) -> None:
    """P10."""
    for limit in (0, -1):
        with pytest.raises(BadRequestError) as refused:
            check(CHAT, {"model": "m", name: limit}, ("m",))
        assert refused.value.param == name
    check(CHAT, {"model": "m", name: None}, ("m",))
    check(COMPLETIONS, {"model": "m", "max_tokens": 0, "echo": True}, ("m",))


def test_unknown_models_and_legacy_functions_are_refused() -> None:
    """P13."""
    check(CHAT, {"model": "m"}, ("m",))
    check(CHAT, {}, ("m",))
    with pytest.raises(BadRequestError) as unknown:
        check(CHAT, {"model": "other"}, ("m",))
    assert (unknown.value.status, unknown.value.param) == (404, "model")
    with pytest.raises(BadRequestError):
        check(CHAT, {"model": "m", "function_call": "auto"}, ("m",))
