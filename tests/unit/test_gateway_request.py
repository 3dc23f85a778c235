"""A request after parsing: what a turn knows of it, also where it is refused or cannot be parsed."""

import json
from typing import Any

import pytest

from gateway.relay.client import Inbound
from gateway.relay.errors import BadRequestError
from gateway.relay.identity import UNKNOWN, Session
from gateway.relay.request import ParsedRequest, check, parse

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


def parsed(body: object, headers: dict[str, str] | None = None, key_id: str | None = None) -> ParsedRequest:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return parse(Inbound("0" * 32, CHAT, None, headers or {}, key_id, raw, 0))


def check_default(request: ParsedRequest, **changes: Any) -> None:
    check(request, **{"models": ("m",), "refused_fields": frozenset({"rid"}), "vocab_size": 10, **changes})


@pytest.mark.parametrize("raw", [b"{", b"[]", b"\xff"])
def test_a_body_that_cannot_be_parsed_leaves_the_headers_and_is_refused_by_check(raw: bytes) -> None:
    request = parsed(raw, {"x-session-id": "s"})
    assert (request.body, request.identity.session) == ({}, Session("s", "x-session-id"))
    with pytest.raises(BadRequestError, match="JSON"):
        check_default(request)


def test_an_identity_that_cannot_be_read_leaves_the_body_so_that_its_store_false_is_seen() -> None:
    deep = b"[" * 1000 + b"]" * 1000
    request = parsed(b'{"store": false, "turn_type": %b}' % deep)
    assert (request.body["store"], request.identity) == (False, UNKNOWN)
    with pytest.raises(RecursionError):
        check_default(request)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"model": "other"}, "model_not_found"),
        ({"rid": "x"}, "private_field"),
        ({"n": 1000}, "n_too_large"),
        ({"stop_token_ids": [10]}, "invalid_token_id"),
    ],
)
def test_check_refuses_unknown_models_private_fields_many_choices_and_unknown_ids(
    body: dict[str, Any], code: str
) -> None:
    with pytest.raises(BadRequestError) as refused:
        check_default(parsed(body))
    assert refused.value.code == code


def test_check_allows_what_the_rules_of_the_worker_allow() -> None:
    check_default(parsed({"model": "other"}), models=("m", "other"))
    check_default(parsed({"rid": "x"}), refused_fields=frozenset())
    check_default(parsed({"stop_token_ids": [10]}), vocab_size=None)


def test_a_conversation_is_the_session_or_else_the_key_and_the_first_two_messages() -> None:
    later = [*HI, {"role": "assistant", "content": "yo"}, {"role": "user", "content": "go on"}]
    first = parsed({"messages": later[:2]}, key_id="k")
    assert first.conversation == parsed({"messages": later}, key_id="k").conversation
    assert first.conversation != parsed({"messages": later}, key_id="other").conversation
    assert first.conversation != parsed({"messages": HI}, key_id="k").conversation
    assert parsed({"messages": HI}, {"x-session-id": "s"}).conversation == "s"


@pytest.mark.parametrize(("body", "choices"), [({}, 1), ({"n": 3}, 3), ({"n": "3"}, 1), ({"n": None}, 1)])
def test_one_answer_is_expected_unless_n_says_otherwise(body: dict[str, Any], choices: int) -> None:
    assert parsed(body).choices == choices


@pytest.mark.parametrize(("stream", "is_stream"), [(True, True), (False, False), (1, False), (None, False)])
def test_only_true_asks_for_a_stream(stream: object, is_stream: bool) -> None:
    assert parsed({"stream": stream}).is_stream is is_stream
