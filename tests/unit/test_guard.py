"""G23: what freezes learning although the reward rises, and what is only skipped."""

import pytest

from dukou.settings.learning import GuardSettings
from dukou.store.states import REASONS
from learner.train.guards import refuse

USUAL = {
    "kl/mean": 0.1,
    "entropy": 2.0,
    "completions/mean_length": 40.0,
    "completions/distinct": 0.95,
    "reward/std": 0.8,
    "optim/grad_norm": 1.0,
}
EARLIER = [USUAL] * 8


def refused(changes, earlier=EARLIER, **guard):
    return refuse({**USUAL, **changes}, earlier[:4], earlier, GuardSettings(**guard))


def test_a_usual_step_is_applied():
    assert refused({}) is None


@pytest.mark.parametrize(
    ("changes", "reason", "says", "off"),
    [
        ({"kl/mean": 2.5}, "drift", "kl/mean is 2.50", {"max_kl": 0}),
        ({"entropy": 0.3}, "drift", "guard.min_entropy", {"min_entropy": 0}),
        ({"completions/mean_length": 170.0}, "drift", "4.25 times", {"max_length": 0}),
        ({"completions/distinct": 0.1}, "drift", "guard.min_distinct", {"min_distinct": 0}),
        ({"optim/grad_norm": 25.0}, "grad_spike", "norm is 25", {"max_spike": 0}),
    ],
)
def test_each_drift_is_named_with_its_limit_and_can_be_turned_off(changes, reason, says, off):
    refusal = refused(changes)
    assert refusal.reason == reason
    assert reason in REASONS
    assert says in refusal.detail
    assert refused(changes, **off) is None


def test_a_rising_reward_does_not_hide_length_and_repetition():
    lengths = [40.0] * 4 + [40.0 * (1 + 0.5 * n) for n in range(10)]
    stream = [
        {**USUAL, "reward/mean": 0.3 + 0.05 * n, "completions/mean_length": length}
        for n, length in enumerate(lengths)
    ]
    first_refused = next(n for n in range(14) if refuse(stream[n], stream[:4], stream[:n], GuardSettings()))
    assert lengths[first_refused] == 180.0


def test_the_same_rewards_for_many_batches_say_that_the_judge_may_be_at_fault():
    same = {"reward/std": 0.0}
    assert "judge" in refused(same, [{**USUAL, **same}] * 8).detail
    assert refused(same) is None
    assert refused(same, [{**USUAL, **same}] * 8, same_rewards=0) is None


def test_the_first_steps_are_held_against_nothing_that_is_unknown():
    assert refused({"entropy": 0.1, "optim/grad_norm": 900.0}, EARLIER[:3]) is None
    unknown = {"kl/mean": None, "completions/distinct": None}
    assert refused(unknown, [{**USUAL, **unknown}] * 8) is None
