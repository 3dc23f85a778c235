"""What a body may not hold: private fields, ids that no model knows, absurd numbers of answers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.admission import MOST_CHOICES, PRIVATE, check_choices, check_fields, check_ids
from gateway.relay.capture import CHAT, COMPLETIONS
from gateway.relay.errors import BadRequestError

SIZE = 100
#: What users of SGLang, vLLM and OpenAI's clients put into `extra_body` and beside it.
ORDINARY = {
    "top_k": 20, "min_p": 0.1, "regex": "a+", "ebnf": "root ::= 'a'", "json_schema": "{}", "ignore_eos": True,
    "chat_template_kwargs": {"enable_thinking": False}, "separate_reasoning": True, "stream_reasoning": True,
    "stop_token_ids": [1], "skip_special_tokens": False, "no_stop_trim": True, "repetition_penalty": 1.1,
    "min_tokens": 1, "continue_final_message": True, "guided_json": {}, "structured_outputs": {},
    "mm_processor_kwargs": {}, "return_token_ids": True, "return_meta_info": True, "cache_salt": "x",
    "session_id": "s", "metadata": {"input_ids": [1]}, "service_tier": "auto", "user": "u", "thinking": {},
}  # fmt: skip


def refused(code: str, check: Any, *asked: Any) -> str | None:
    with pytest.raises(BadRequestError) as error:
        check(*asked)
    assert (error.value.status, error.value.code) == (400, code)
    return error.value.param


@pytest.mark.parametrize("name", sorted(PRIVATE))
def test_a_private_field_is_refused_by_its_name_and_one_that_is_null_is_none(name: str) -> None:
    assert refused("private_field", check_fields, {"model": "m", name: 1}, PRIVATE) == name
    check_fields({"model": "m", name: None}, PRIVATE)
    check_fields({"model": "m", name: 1}, frozenset())


def test_what_ordinary_users_send_passes() -> None:
    check_fields(ORDINARY, PRIVATE)
    check_choices(CHAT, ORDINARY)
    check_ids(CHAT, ORDINARY, SIZE)


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        (COMPLETIONS, "prompt", "a"),
        (COMPLETIONS, "prompt", ["a", "b"]),
        (COMPLETIONS, "prompt", []),
        (COMPLETIONS, "prompt", [0, SIZE - 1]),
        (COMPLETIONS, "prompt", [[0], [SIZE - 1, 1], []]),
        (COMPLETIONS, "logit_bias", {"0": 1, "99": -100}),
        (CHAT, "logit_bias", None),
        (CHAT, "prompt", [-1]),  # nobody's field there
        (CHAT, "tokens", ["x"]),
        ("/v1/embeddings", "input", "a"),
        ("/v1/embeddings", "input", [{"text": "a", "image": "b"}]),
        ("/v1/embeddings", "input", [[1, 2]]),
        ("/v1/detokenize", "tokens", [[1], [2]]),
        ("/v1/score", "items", [[1], [2]]),
        ("/v1/score", "query", "a"),
    ],
)
def test_texts_and_ids_of_the_vocabulary_pass(path: str, name: str, value: Any) -> None:
    check_ids(path, {"model": "m", name: value}, SIZE)


@pytest.mark.parametrize("wrong", [SIZE, -1, 2**63, 1.0, "5", True, None, {}, [[1]]])
@pytest.mark.parametrize(
    ("path", "name"),
    [
        (COMPLETIONS, "prompt"),
        (COMPLETIONS, "stop_token_ids"),
        (CHAT, "stop_token_ids"),
        (CHAT, "input_ids"),
        (CHAT, "token_ids_logprob"),
        ("/v1/embeddings", "input"),
        ("/v1/classify", "input"),
        ("/v1/detokenize", "tokens"),
        ("/v1/score", "label_token_ids"),
    ],
)
def test_one_wrong_id_is_refused_wherever_it_stands(path: str, name: str, wrong: Any) -> None:
    texts = name in ("prompt", "input")
    places = [[1, 2, [3, wrong]], [[wrong], [1]]]
    if not (texts and isinstance(wrong, str | dict)):
        places += [[wrong], [1, wrong, 2]]
    for value in places:
        assert refused("invalid_token_id", check_ids, path, {name: value}, SIZE) == name


@pytest.mark.parametrize("key", ["100", "-1", "x", "", "1.5", "9" * 5000, "٣"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_bias_for_an_id_that_is_none_is_refused(path: str, key: str) -> None:
    body = {"logit_bias": {"5": 1, key: 1}}
    assert refused("invalid_token_id", check_ids, path, body, SIZE) == "logit_bias"


def test_of_an_unknown_vocabulary_any_id_may_be_and_what_is_no_id_is_still_refused() -> None:
    check_ids(COMPLETIONS, {"prompt": [10**9], "logit_bias": {"1000000": 1}}, None)
    refused("invalid_token_id", check_ids, COMPLETIONS, {"prompt": [-1]}, None)
    refused("invalid_token_id", check_ids, CHAT, {"stop_token_ids": ["x"]}, None)


@pytest.mark.parametrize("name", ["n", "best_of"])
@pytest.mark.parametrize("value", [MOST_CHOICES + 1, 10**9, 1e9, "1000000", 10**400, float("inf")])
def test_absurd_numbers_of_answers_are_refused_however_they_are_written(name: str, value: Any) -> None:
    assert refused("n_too_large", check_choices, CHAT, {name: value}) == name


@pytest.mark.parametrize("value", [1, MOST_CHOICES, None, "many", [], True, float("nan")])
def test_other_numbers_of_answers_are_the_engines_business(value: Any) -> None:
    check_choices(COMPLETIONS, {"n": value})
    check_choices("/v1/embeddings", {"n": 10**9})


_IDS = st.integers(-3, SIZE + 3) | st.integers() | st.none() | st.text(max_size=2) | st.floats()


@given(st.recursive(_IDS, lambda inner: st.lists(inner, max_size=4), max_leaves=12))
def test_no_id_beyond_the_vocabulary_ever_passes(value: Any) -> None:
    try:
        check_ids(COMPLETIONS, {"prompt": value, "stop_token_ids": value}, SIZE)
    except BadRequestError:
        return
    flat = [value] if not isinstance(value, list) else value
    for ids in (element if isinstance(element, list) else [element] for element in flat):
        assert value is None or all(type(i) is int and 0 <= i < SIZE for i in ids)
