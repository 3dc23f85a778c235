import uuid
from dataclasses import replace

import pytest

from dukou.settings.learning import AdvantageSettings
from dukou.store.batches import BaselineState, Candidate
from dukou.store.states import REASONS
from learner.batch.compose import assemble
from learner.batch.rules import RULES, Limits, staleness, why_dropped

LIMITS = Limits(depth={7: 0, 6: 1, 4: 2, 2: 3, 0: 4}, max_staleness=3, max_tokens=100, vocabulary=512)
GOOD = Candidate(
    turn_id=uuid.UUID(int=1), tenant="t", user="u", session_id="s", prompt_hash=b"p", task="chat",
    version_min=7, version_max=7, tokens=20, answer_tokens=5, lowest_id=0, highest_id=511, reward=1.0,
    cut_short=False, session_trained=False,
)  # fmt: skip


def made(candidates, settings=None, *, hints=False):
    return assemble(candidates, LIMITS, settings or AdvantageSettings(), BaselineState(), hints=hints)


def turns(*rewards, prompts=None):
    return [
        replace(GOOD, turn_id=uuid.UUID(int=n), session_id=f"s{n}", reward=reward, prompt_hash=prompt)
        for n, (reward, prompt) in enumerate(zip(rewards, prompts or [None] * len(rewards), strict=True))
    ]


def test_a_good_turn_breaks_no_rule():
    assert why_dropped(GOOD, LIMITS) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"reward": None}, "no_quorum"),
        ({"version_min": None}, "version_unknown"),
        ({"answer_tokens": 0}, "empty_answer"),
        ({"tokens": 5}, "no_ids"),
        ({"version_min": 5, "version_max": 5}, "not_an_ancestor"),
        ({"version_max": 8}, "not_an_ancestor"),
        ({"tokens": 101}, "too_long"),
        ({"highest_id": 512}, "out_of_vocabulary"),
        ({"lowest_id": -1}, "out_of_vocabulary"),
    ],
)
def test_each_rule_has_its_reason(change, reason):
    assert why_dropped(replace(GOOD, **change), LIMITS) == reason


@pytest.mark.parametrize(
    ("change", "limits", "reason"),
    [
        ({"cut_short": True}, {"train_cut_short": False}, "cut_short"),
        ({"cut_short": True}, {}, None),
        ({"sampling_class": "truncated"}, {}, "sampling_truncated"),
        ({"sampling_class": "truncated"}, {"train_truncated": True}, None),
        ({"sampling_class": None}, {}, None),
        ({"temperature": None}, {}, "sampling_unknown"),
        ({"reward": 0.0}, {"train_zeros": False}, "zero_score"),
        ({"reward": 0.0}, {}, None),
        ({}, {"needs_hint": True}, "no_hint"),
        ({"hint_id": 1, "hint_tokens": 30}, {"needs_hint": True}, None),
        ({"hint_id": 1, "hint_tokens": 96}, {"needs_hint": True}, "no_hint"),
    ],
)
def test_rules_by_choice_apply_only_where_chosen(change, limits, reason):
    """G16: what is cut short is trained or not, by one rule; a hint that leaves no room is none."""
    assert why_dropped(replace(GOOD, **change), replace(LIMITS, **limits)) == reason


def test_every_reason_has_its_words():
    reasons = {reason for reason, _ in RULES} | {"no_spread", "stale", "not_finite", "grad_spike", "drift"}
    assert reasons <= REASONS.keys()


def test_a_hint_is_part_of_a_sample_only_where_a_teacher_takes_part():
    hinted = [replace(t, hint_id=7, hint_tokens=30) for t in turns(1.0, -1.0)]
    assert [m.hint_id for m in made(hinted).samples] == [None, None]
    assert [m.hint_id for m in made(hinted, hints=True).samples] == [7, 7]


def test_a_hinted_turn_stays_though_its_group_has_no_spread():
    one, two = turns(1.0, 1.0, prompts=[b"a", b"a"])
    batch = made([replace(one, hint_id=3, hint_tokens=9), two], AdvantageSettings(kind="group"), hints=True)
    assert [(m.turn_id.int, m.advantage, m.hint_id) for m in batch.samples] == [(0, 0.0, 3)]
    assert list(batch.dropped.values()) == ["no_spread"]


def test_staleness_counts_from_the_oldest_version_along_the_tree():
    """G19, W12: distance in the tree, never a difference of numbers, never negative."""
    assert staleness(replace(GOOD, version_min=2, version_max=7), LIMITS) == 3
    assert staleness(GOOD, LIMITS) == 0
    with pytest.raises(KeyError):
        staleness(replace(GOOD, version_min=50, version_max=57), LIMITS)


def test_the_default_centres_and_keeps_everybody():
    batch = made(turns(1.0, 0.0, -1.0, 0.0), AdvantageSettings())
    assert not batch.dropped
    assert batch.samples[0].advantage > 0 > batch.samples[2].advantage
    assert all(
        m.advantage == pytest.approx((m.reward - m.baseline) / 0.85, rel=0.3) for m in batch.samples[:1]
    )


def test_raw_rewards_pass_through():
    batch = made(turns(1.0, 0.0), AdvantageSettings(kind="raw"))
    assert [(m.baseline, m.advantage) for m in batch.samples] == [(0.0, 1.0), (0.0, 0.0)]


def test_a_group_without_spread_is_dropped_and_the_rest_trained():
    """G17: it is in no step at all, so it gives no gradient of the KL term either."""
    rewards, prompts = (1.0, -1.0, 0.6, 0.6, 1.0), [b"a", b"a", b"b", b"b", None]
    batch = made(turns(*rewards, prompts=prompts), AdvantageSettings(kind="group"))
    assert [m.turn_id.int for m in batch.samples] == [0, 1]
    assert {turn.int: reason for turn, reason in batch.dropped.items()} == dict.fromkeys(
        (2, 3, 4), "no_spread"
    )


@pytest.mark.parametrize(
    ("kind", "advantages"),
    [("group_mean", [1.0, -1.0]), ("leave_one_out", [2.0, -2.0]), ("group", [0.70706, -0.70706])],
)
def test_each_kind_of_group_advantage_is_its_own(kind, advantages):
    batch = made(turns(1.0, -1.0, prompts=[b"a", b"a"]), AdvantageSettings(kind=kind))
    assert [m.advantage for m in batch.samples] == pytest.approx(advantages, abs=1e-4)


def test_siblings_of_two_tenants_are_two_groups():
    one, two = turns(1.0, -1.0, prompts=[b"a", b"a"])
    batch = made([one, replace(two, tenant="u")], AdvantageSettings(kind="group"))
    assert batch.samples == []
