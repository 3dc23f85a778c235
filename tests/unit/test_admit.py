"""Who comes into a batch: shares, tokens, late turns, zeros."""

import uuid
from collections import Counter
from dataclasses import replace

import pytest

from dukou.settings.learning import BatchSettings
from dukou.store.batches import Candidate
from learner.batch.rules import HELD, TAKEN, BatchDraft, Limits

LIMITS = Limits(depth={n: 9 - n for n in range(10)}, max_staleness=2, max_tokens=100, vocabulary=512)
TURN = Candidate(
    turn_id=uuid.UUID(int=1), tenant="t", user="u", session_id="s", prompt_hash=b"p", task="chat",
    version_min=9, version_max=9, tokens=20, answer_tokens=5, lowest_id=0, highest_id=511, reward=1.0,
    cut_short=False, session_trained=False,
)  # fmt: skip


def draft(**settings):
    return BatchDraft(BatchSettings(**{"rollout_batch_size": 8, **settings}), LIMITS)


def turn(number, **changes):
    return replace(TURN, turn_id=uuid.UUID(int=number), **changes)


def kinds(batch, turns):
    return [batch.offer(each).kind for each in turns]


@pytest.mark.parametrize(
    ("setting", "column", "value"),
    [
        ("max_share_tenant", "tenant", "other"),
        ("max_share_user", "user", "other"),
        ("max_share_session", "session_id", "other"),
        ("max_share_task", "task", "tools"),
    ],
)
def test_nobody_has_more_than_their_share_and_what_is_over_waits(setting, column, value):
    batch = draft(**{setting: 0.5})
    assert kinds(batch, [turn(n) for n in range(6)]) == ["taken"] * 4 + ["held"] * 2
    assert not batch.full
    assert kinds(batch, [turn(n, **{column: value}) for n in range(6, 10)]) == ["taken"] * 4
    assert batch.full


def test_the_same_name_in_another_tenant_is_somebody_else():
    batch = draft(max_share_session=0.125, max_share_user=0.125)
    assert kinds(batch, [turn(1), turn(2), turn(3, tenant="v")]) == ["taken", "held", "taken"]
    assert batch.saturated("session") == [("t", "s"), ("v", "s")]


def test_the_smallest_share_is_one_turn():
    assert draft(max_share_user=0.01).offer(turn(1)) == TAKEN


def test_by_default_one_person_may_fill_a_batch():
    batch = draft()
    assert kinds(batch, [turn(n) for n in range(8)]) == ["taken"] * 8
    assert batch.offer(turn(9)) == HELD


def test_a_batch_is_full_when_the_next_turn_is_over_its_tokens():
    batch = draft(max_batch_tokens=50)
    assert kinds(batch, [turn(1), turn(2), turn(3)]) == ["taken", "taken", "held"]
    assert batch.full


def test_a_turn_longer_than_the_batchs_tokens_goes_alone():
    batch = draft(max_batch_tokens=50)
    assert kinds(batch, [turn(1, tokens=90), turn(2)]) == ["taken", "held"]


def test_stale_turns_have_a_share_and_the_others_are_dropped_as_stale():
    batch = draft(late_share=0.25)
    verdicts = [batch.offer(turn(n, version_min=3)) for n in range(3)]
    assert [v.kind for v in verdicts] == ["taken", "taken", "dropped"]
    assert verdicts[2].reason == "stale"
    assert draft(late_share=0).offer(turn(1, version_min=3)).reason == "stale"


def test_slow_tasks_are_trained_too():
    """G18: half of the tasks take 1 version, half 6, with a staleness of at most 2."""
    trained, dropped = Counter(), Counter()
    waiting = []
    for step in range(1000):
        now = Limits({v: step - v for v in range(step + 1)}, 2, 100, 512)
        for task, took in (("chat", 1), ("tools", 6)):
            waiting += [
                turn(n, task=task, version_min=max(0, step - took), version_max=step) for n in range(4)
            ]
        batch = BatchDraft(BatchSettings(rollout_batch_size=8), now)
        for each in waiting:
            verdict = batch.offer(each)
            (trained if verdict == TAKEN else dropped)[each.task] += verdict != HELD
        waiting = []
    assert dropped["chat"] == 0
    assert trained["tools"] / (trained["tools"] + dropped["tools"]) == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize(
    ("zeros", "trained", "expected"),
    [
        ("train", False, ["taken", "taken"]),
        ("at_least_one", False, ["taken", "dropped"]),
        ("at_least_one", True, ["dropped", "dropped"]),
    ],
)
def test_at_least_one_keeps_a_sessions_first_zero_while_nothing_else_counts(zeros, trained, expected):
    batch = draft(zeros=zeros)
    zero = [turn(n, reward=0.0, session_trained=trained) for n in (1, 2)]
    assert kinds(batch, zero) == expected
    assert kinds(batch, [turn(3, reward=1.0, session_trained=trained)]) == ["taken"]


def test_a_zero_after_a_counted_turn_of_its_session_is_dropped_and_of_another_kept():
    batch = draft(zeros="at_least_one")
    assert kinds(batch, [turn(1), turn(2, reward=0.0), turn(3, reward=0.0, session_id="other")]) == [
        "taken",
        "dropped",
        "taken",
    ]
