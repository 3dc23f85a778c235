import numpy as np
import pytest

from learner.batch import advantage


@pytest.mark.parametrize("rewards", [[0.6] * 6, [0.3] * 7, [1.0] * 4, [0.0] * 4])
def test_equal_rewards_give_exactly_zero(rewards):
    """G1: float noise in the deviation would give 0.79."""
    values, groups = np.array(rewards), [0] * len(rewards)
    for advantages in (
        advantage.over_batch(values),
        advantage.over_groups(values, groups),
        advantage.over_groups(values, groups, divide=False),
        advantage.leave_one_out(values, groups),
    ):
        assert (advantages == 0).all()
    assert not advantage.has_spread(values, groups).any()


def test_equal_float32_rewards_give_exactly_zero():
    values = np.full(6, 0.6, dtype=np.float32)
    assert (advantage.over_batch(values) == 0).all()


@pytest.mark.parametrize("form", [advantage.over_groups, advantage.leave_one_out])
def test_a_group_of_one_is_zero_and_has_no_spread(form):
    """G2."""
    values, groups = np.array([1.0, 1.0, -1.0]), ["alone", "pair", "pair"]
    advantages = form(values, groups)
    assert advantages[0] == 0
    assert np.isfinite(advantages).all()
    assert advantage.has_spread(values, groups).tolist() == [False, True, True]


def test_no_samples_give_no_advantages():
    assert len(advantage.over_groups(np.array([]), [])) == 0


@pytest.mark.parametrize(("size", "dead"), [(2, 0.705), (4, 0.453), (8, 0.205), (16, 0.042)])
def test_the_share_of_dead_groups_is_what_binary_rewards_imply(size, dead):
    """G2: p = 0.18."""
    rewards = (np.random.default_rng(0).random(4_000 * size) < 0.18).astype(float)
    groups = np.repeat(np.arange(4_000), size).tolist()
    share = 1 - advantage.has_spread(rewards, groups)[::size].mean()
    assert share == pytest.approx(dead, abs=0.03)


def test_a_missing_reward_poisons_nobody_else():
    """G4."""
    advantages = advantage.over_groups(np.array([0.2, 0.9, np.nan, 0.4]), [0] * 4)
    np.testing.assert_allclose(advantages[[0, 1, 3]], [-0.832050, 1.109400, -0.277350], rtol=3e-4)
    assert np.isnan(advantages[2])


def test_groups_are_centred_apart():
    advantages = advantage.over_groups(np.array([0.0, 1.0, 10.0, 12.0]), [0, 0, 1, 1], divide=False)
    assert advantages.tolist() == [-0.5, 0.5, -1.0, 1.0]


def test_another_number_of_group_names_is_refused():
    with pytest.raises(ValueError, match="2 rewards, but 1"):
        advantage.over_groups(np.array([0.0, 1.0]), [0])
