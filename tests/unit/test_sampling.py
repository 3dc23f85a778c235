import pytest

from gateway.drain.sampling import classify, parameters, temperature

TOOL = {"type": "function", "function": {"name": "f"}}
STRICT = {"type": "function", "function": {"name": "f", "strict": True}}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, "free"),
        ({"temperature": 0.6}, "free"),
        ({"temperature": None, "top_p": None}, "free"),
        ({"top_p": 1, "top_k": -1, "min_p": 0, "presence_penalty": 0.0, "repetition_penalty": 1.0}, "free"),
        ({"stop": ["END"], "seed": 3, "max_tokens": 5, "response_format": {"type": "text"}}, "free"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "free"),
        ({"tools": [STRICT], "tool_choice": "none"}, "free"),
        ({"temperature": 0}, "greedy"),
        ({"temperature": 1e-7}, "greedy"),
        ({"temperature": "0"}, "greedy"),
        ({"top_k": 1}, "greedy"),
        ({"top_k": "1"}, "greedy"),
        ({"top_p": "0.9"}, "truncated"),
        ({"temperature": 0, "response_format": {"type": "json_object"}}, "greedy"),
        ({"top_p": 0.9}, "truncated"),
        ({"top_k": 50}, "truncated"),
        ({"min_p": 0.05}, "truncated"),
        ({"response_format": {"type": "json_schema"}}, "constrained"),
        ({"tools": [TOOL], "tool_choice": "required"}, "constrained"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "constrained"),
        ({"tools": [STRICT]}, "free"),  # as far as the request tells: see test_strict.py
        ({"messages": [{"role": "system", "tools": [TOOL]}], "tool_choice": "required"}, "constrained"),
        ({"logit_bias": {"5": 10}}, "constrained"),
        ({"frequency_penalty": 0.1}, "constrained"),
        ({"repetition_penalty": 1.1}, "constrained"),
        ({"min_tokens": 4}, "constrained"),
        ({"regex": "a+", "top_p": 0.5}, "constrained"),
    ],
)
def test_the_class_says_what_the_logprobs_mean(body, expected):
    """K15."""
    assert classify(body) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, 1.0), (0.3, 0.3), ("0.3", 0.3), (True, 1.0), ("warm", 1.0), ([], 1.0), (10**400, 1.0)],
)
def test_a_temperature_is_read_as_the_engine_reads_it(value, expected):
    """The engine takes a text for its number, and refuses what is none."""
    assert (temperature({"temperature": value}), temperature({})) == (expected, 1.0)


def test_parameters_are_kept_as_sent_and_nothing_else_is():
    body = {"temperature": None, "top_p": 1, "messages": [], "user": "u"}
    assert parameters(body) == {"temperature": None, "top_p": 1}
