import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.parse.reply import Answer
from gateway.parse.tokens import align


def answer(ids, logprobs):
    return Answer(0, response_ids=ids, logprobs=logprobs)


def test_ids_and_logprobs_lie_side_by_side():
    """K1."""
    capture = align(answer((393, 30002), (-1.0, -2.0)))
    assert capture.response_ids.tolist() == [393, 30002]
    assert (capture.response_ids.dtype, capture.logprobs.dtype) == (np.int32, np.float32)
    assert (capture.logprobs.tolist(), capture.kind, capture.reason) == ([-1.0, -2.0], "sampled", None)


@pytest.mark.parametrize("told", [(-0.5,), (-0.5,) * 4])
def test_another_number_of_logprobs_keeps_the_ids_and_no_logprob(told):
    """K8, K10."""
    capture = align(answer((1, 2, 3), told))
    assert (capture.response_ids.tolist(), capture.logprobs) == ([1, 2, 3], None)
    assert (capture.kind, capture.reason) == ("none", "logprob_count_mismatch")


@pytest.mark.parametrize(
    "bad", [None, float("nan"), float("-inf"), float("inf"), -9999.0, 1e308, -9998.99999]
)
def test_a_position_without_a_number_is_missing_and_never_0(bad):
    """K7, K18."""
    capture = align(answer((1, 2), (-100.0, bad)))
    assert capture.logprobs[0] == -100.0
    assert np.isnan(capture.logprobs[1])
    assert capture.reason == "logprob_not_finite"


@pytest.mark.parametrize("bad", [5.0, 0.0011, 3e38])
def test_a_logprob_above_0_is_missing_and_rounding_is_not(bad):
    """Values are looked at as they are stored: in float32."""
    capture = align(answer((1, 2, 3), (0.0, bad, 1e-3)))
    assert np.isnan(capture.logprobs).tolist() == [False, True, False]
    assert (capture.kind, capture.reason) == ("sampled", "logprob_impossible")


@given(st.lists(st.none() | st.floats(), min_size=1, max_size=5))
def test_every_stored_logprob_is_possible_or_missing_with_a_reason(values):
    capture = align(answer(tuple(range(len(values))), tuple(values)))
    missing = np.isnan(capture.logprobs)
    assert np.all(missing | ((capture.logprobs > -9999) & (capture.logprobs <= 0.001)))
    assert (capture.reason is None) == (not missing.any())
    kept = [value for value, gone in zip(values, missing, strict=True) if not gone]
    assert capture.logprobs[~missing].tolist() == [float(np.float32(value)) for value in kept]


@pytest.mark.parametrize(
    ("told", "tokens", "reason"),
    [
        (answer(None, None), 7, "no_ids"),
        (answer(None, (-0.1,)), 7, "logprob_count_mismatch"),
        (answer(None, (-0.1,)), None, "no_ids"),
        (answer((), None), 0, "empty_answer"),
        (answer((1,), None), 1, "no_logprobs"),
    ],
)
def test_what_is_missing_has_its_reason(told, tokens, reason):
    capture = align(told, tokens)
    assert (capture.kind, capture.logprobs, capture.reason) == ("none", None, reason)
