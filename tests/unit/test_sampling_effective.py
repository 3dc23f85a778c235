"""What an answer was sampled with, by request and engine together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.drain import sampling
from gateway.drain.sampling import DEFAULT_FIELDS as FIELDS
from gateway.drain.sampling import completed, effective_temperature, sampling_class

QWEN3 = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
NULLS = dict.fromkeys(FIELDS)
NEUTRAL = {"temperature": 1, "top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1}


@pytest.mark.parametrize(
    ("body", "defaults", "expected"),
    [
        ({}, {}, ("free", 1.0)),
        ({}, {"temperature": 0.6}, ("free", 0.6)),
        ({}, QWEN3, ("truncated", 0.6)),
        (NULLS, QWEN3, ("truncated", 0.6)),
        ({"temperature": 1.0}, QWEN3, ("truncated", 1.0)),
        ({"top_p": 1, "top_k": -1}, QWEN3, ("free", 0.6)),
        (NEUTRAL, QWEN3, ("free", 1.0)),
        ({}, {"repetition_penalty": 1.05}, ("constrained", 1.0)),
        ({"repetition_penalty": 1}, {"repetition_penalty": 1.05}, ("free", 1.0)),
        ({}, {"temperature": 0}, ("greedy", 0.0)),
        ({"temperature": 0.5}, {"temperature": 0}, ("free", 0.5)),
        ({}, {"top_k": 1}, ("greedy", 1.0)),
        ({}, {"min_p": 0.05}, ("truncated", 1.0)),
        ({}, {"json_schema": "{}"}, ("constrained", 1.0)),
        ({}, {"beam_width": 4}, ("constrained", 1.0)),
        ({}, None, (None, None)),
        (NULLS, None, (None, None)),
        ({"temperature": 1}, None, (None, 1.0)),
        ({"temperature": 1, "top_p": 0.9}, None, (None, 1.0)),
        (NEUTRAL, None, ("free", 1.0)),
        (NEUTRAL | {"top_p": 0.9}, None, ("truncated", 1.0)),
        (NEUTRAL | {"min_p": None}, None, (None, 1.0)),
        ({"temperature": 0}, None, ("greedy", 0.0)),
        ({"top_k": 1}, None, ("greedy", None)),
        ({"regex": "a+"}, None, ("constrained", None)),
        ({"presence_penalty": 0.5}, None, ("constrained", None)),
    ],
)
def test_class_and_temperature_go_by_request_and_defaults_together(body, defaults, expected):
    """K15."""
    assert (sampling_class(body, defaults), effective_temperature(body, defaults)) == expected


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "0.6", [1]])
BODIES = st.dictionaries(st.sampled_from((*FIELDS, "presence_penalty", "regex", "tools", "stop")), VALUES)
NUMBERS = st.dictionaries(st.sampled_from(FIELDS), st.floats(0.01, 2))


@given(BODIES, NUMBERS)
def test_a_request_that_states_every_field_is_sampled_alike_on_every_engine(body, defaults):
    body = NEUTRAL | {name: value for name, value in body.items() if value is not None}
    assert completed(body, defaults) == body
    assert sampling_class(body, None) == sampling_class(body, defaults) == sampling.classify(body)
    assert repr(effective_temperature(body, None)) == repr(effective_temperature(body, defaults))


@given(BODIES, NUMBERS)
def test_a_field_that_is_null_and_one_that_is_left_out_are_the_same(body, defaults):
    without = {name: value for name, value in body.items() if value is not None}
    for known in (defaults, None):
        assert sampling_class(body, known) == sampling_class(without, known)
        assert repr(effective_temperature(body, known)) == repr(effective_temperature(without, known))


@given(BODIES)
def test_nothing_is_free_or_truncated_while_a_default_that_counts_is_unknown(body):
    states_all = all(body.get(name) is not None for name in FIELDS)
    if not states_all:
        assert sampling_class(body, None) in (None, "greedy", "constrained")


@given(BODIES, NUMBERS)
def test_what_a_request_states_is_never_overridden(body, defaults):
    whole = completed(body, defaults)
    assert whole is not None
    assert {name: repr(whole[name]) for name, value in body.items() if value is not None} == {
        name: repr(value) for name, value in body.items() if value is not None
    }
