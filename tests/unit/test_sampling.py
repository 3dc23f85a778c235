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
        ({"top_k": 1}, "greedy"),
        ({"temperature": 0, "response_format": {"type": "json_object"}}, "greedy"),
        ({"top_p": 0.9}, "truncated"),
        ({"top_k": 50}, "truncated"),
        ({"min_p": 0.05}, "truncated"),
        ({"response_format": {"type": "json_schema"}}, "constrained"),
        ({"tools": [TOOL], "tool_choice": "required"}, "constrained"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "constrained"),
        ({"tools": [STRICT]}, "constrained"),
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


def test_a_missing_temperature_is_the_engines_default():
    assert [temperature(body) for body in ({}, {"temperature": None}, {"temperature": 0.3})] == [
        1.0,
        1.0,
        0.3,
    ]


def test_parameters_are_kept_as_sent_and_nothing_else_is():
    body = {"temperature": None, "top_p": 1, "messages": [], "user": "u"}
    assert parameters(body) == {"temperature": None, "top_p": 1}
