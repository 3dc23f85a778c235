"""Why a version may not become live: what its step measured, against the limits."""

import pytest
import torch

from dukou.settings.learning import PublishSettings
from learner.train.guards import refusal
from learner.train.heldout import compare

FINE = {
    "kl/mean": 0.1,
    "held/turns": 8.0,
    "held/kl_last": 0.01,
    "held/kl_base": 0.1,
    "held/good": 0.02,
    "held/bad": -0.02,
}
LIMITS = PublishSettings(max_kl=0.5, max_kl_last=0.2, max_fall=0.3)


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        (
            {"kl/mean": 0.9},
            "its KL to the base model is 0.9 nats a token, publish.max_kl allows 0.5",
        ),
        (
            {"held/kl_base": 0.75},
            "its KL to the base model is 0.75 nats a token on 8 held-out turns, publish.max_kl allows 0.5",
        ),
        (
            {"held/kl_last": 0.25},
            "its KL to the version before is 0.25 nats a token on 8 held-out turns, "
            "publish.max_kl_last allows 0.2",
        ),
        (
            {"held/good": -0.4, "held/bad": -0.1},
            "on 8 held-out turns good answers became less likely by 0.4 nats a token, bad ones by 0.1: "
            "publish.max_fall allows 0.3",
        ),
        (
            {"held/good": -0.4, "held/bad": None},
            "on 8 held-out turns good answers became less likely by 0.4 nats a token: "
            "publish.max_fall allows 0.3",
        ),
    ],
)
def test_a_version_beyond_a_limit_is_refused_with_its_numbers(measured: dict[str, float], said: str) -> None:
    assert refusal(FINE, LIMITS) is None
    assert refusal(FINE | measured, LIMITS) == said


def test_a_limit_of_0_and_what_was_not_measured_refuse_nothing() -> None:
    bad = {"kl/mean": 9.0, "held/kl_last": 9.0, "held/kl_base": 9.0, "held/good": -9.0, "held/turns": 8.0}
    assert refusal(bad, PublishSettings(max_kl=0, max_kl_last=0, max_fall=0)) is None
    assert refusal({}, LIMITS) is None
    assert refusal(dict.fromkeys(FINE), LIMITS) is None


def test_bad_answers_may_become_unlikely() -> None:
    assert refusal(FINE | {"held/bad": -5.0}, LIMITS) is None


def test_good_and_bad_answers_are_told_apart_and_each_counts_once() -> None:
    before = [torch.full((2,), -1.0), torch.full((6,), -1.0), torch.full((4,), -2.0)]
    after = [torch.full((2,), -0.5), torch.full((6,), -1.5), torch.full((4,), -2.0)]
    found = compare([1.0, 1.0, -1.0], before, after, None)
    assert found["held/good"] == pytest.approx(0.0)  # +0.5 and −0.5, however long they are
    assert found["held/bad"] == 0.0
    # k3 with d = new − old: e^d − 1 − d over the 12 tokens
    expected = (2 * (2.718281828**0.5 - 1.5) + 6 * (2.718281828**-0.5 - 0.5)) / 12
    assert found["held/kl_last"] == pytest.approx(expected, rel=1e-5)
    assert found["held/kl_base"] is None
    assert found["held/turns"] == 3.0


def test_without_good_or_bad_answers_their_change_is_unknown() -> None:
    logprobs = [torch.zeros(3)]
    assert compare([0.0], logprobs, logprobs, logprobs) == {
        "held/turns": 1.0,
        "held/kl_last": 0.0,
        "held/kl_base": 0.0,
        "held/good": None,
        "held/bad": None,
    }
