"""Session spellings in their order, turn ids that sort, and what is recorded of the headers."""

import uuid

import pytest

from gateway.relay.identity import identify, new_turn_id, recorded_headers, split_path

CASES = [
    ("p", {"x-session-id": "h"}, {"session_id": "b"}, ("p", "path")),
    (None, {"x-session-id": "h", "x-litellm-session-id": "l"}, {}, ("h", "x-session-id")),
    (None, {"x-litellm-trace-id": "t", "x-litellm-session-id": "l"}, {}, ("l", "x-litellm-session-id")),
    (None, {"x-litellm-trace-id": "t"}, {"session_id": "b"}, ("t", "x-litellm-trace-id")),
    (None, {"x-claude-code-session-id": "c"}, {}, ("c", "x-claude-code-session-id")),
    (None, {"user-agent": "codex_cli_rs/1", "session_id": "c"}, {}, ("c", "session_id")),
    (None, {"user-agent": "curl", "session_id": "c"}, {}, None),
    (None, {}, {"session_id": 7, "metadata": {"session_id": "m"}}, ("7", "body:session_id")),
    (None, {}, {"metadata": {"session_id": "m"}}, ("m", "body:metadata.session_id")),
    (None, {}, {"metadata": {"user_id": "user_1_account__session_ab-1"}}, ("ab-1", "body:metadata.user_id")),
    (None, {}, {"previous_response_id": "r", "prompt_cache_key": "k"}, ("r", "body:previous_response_id")),
    (None, {}, {"prompt_cache_key": "k"}, ("k", "body:prompt_cache_key")),
    (None, {}, {"user": "u", "safety_identifier": "s", "metadata": "x", "session_id": True}, None),
    (None, {"x-session-id": " "}, {"session_id": "a\x00b"}, None),
    (None, {"x-session-id": "x" * 257}, {"session_id": "b"}, ("b", "body:session_id")),
]


@pytest.mark.parametrize(("path", "headers", "body", "expected"), CASES)
def test_the_first_spelling_that_is_there_wins(path, headers, body, expected) -> None:
    session = identify(path, headers, body).session
    assert (session and (session.id, session.source)) == expected


@pytest.mark.parametrize("word", ["1", "true", "YES", "on", True])
def test_session_done_knows_the_usual_words(word: object) -> None:
    assert identify(None, {}, {"session_done": word}).session_done
    assert identify(None, {"x-session-done": str(word)}, {}).session_done


@pytest.mark.parametrize("word", ["0", "false", "no", "", None])
def test_session_done_is_not_every_word(word: object) -> None:
    assert not identify(None, {}, {"session_done": word}).session_done


def test_turn_type_is_main_or_side_or_unknown() -> None:
    assert identify(None, {"x-turn-type": "Side"}, {"turn_type": "main"}).turn_type == "side"
    assert identify(None, {}, {"turn_type": "main"}).turn_type == "main"
    assert identify(None, {"x-turn-type": "other"}, {}).turn_type is None


def test_a_parent_is_a_turn_id_in_either_form() -> None:
    turn_id = new_turn_id()
    assert identify(None, {"x-parent-turn-id": str(uuid.UUID(turn_id))}, {}).parent == turn_id
    assert identify(None, {"x-parent-turn-id": "nonsense"}, {}).parent is None


def test_turn_ids_are_uuid7_and_sort_by_time() -> None:
    first, second = new_turn_id(1_700_000_000_000_000_000), new_turn_id(1_700_000_000_001_000_000)
    assert first < second
    assert uuid.UUID(first).version == 7
    assert uuid.UUID(first).variant == uuid.RFC_4122
    assert int(first[:12], 16) == 1_700_000_000_000
    assert new_turn_id(0) != new_turn_id(0)


def test_credentials_are_not_recorded() -> None:
    kept = recorded_headers(
        {
            "authorization": "Bearer k",
            "x-api-key": "k",
            "cookie": "k",
            "user-agent": "a",
            "x-acme-session-id": "s",
        }
    )
    assert kept == {"user-agent": "a", "x-acme-session-id": "s"}


def test_a_session_path_is_split_and_others_are_not() -> None:
    assert split_path("/sessions/a b/v1/models") == ("/v1/models", "a b")
    assert split_path("/sessions/a/generate") == ("/sessions/a/generate", None)
    assert split_path("/v1/models") == ("/v1/models", None)
