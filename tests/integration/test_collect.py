"""Batches close when they should, with what they should, and say why not."""

import threading
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from sqlalchemy import text

from dukou.store import versions
from dukou.store.versions import NewVersion
from learner.batch.close import ClosedBatch, NoBatch, close_batch
from tests.fakes.training import NOW, config, fill, make_policy, rows


@pytest.fixture
def settings(tmp_path):
    return config(tmp_path)


@pytest.fixture
def policy(db, settings):
    return make_policy(db, settings)


def soon():
    return datetime.now(UTC) + timedelta(seconds=5)


def reasons(db):
    return dict(rows(db, "select reason, count(*) from turn_states where stage = 'dropped' group by reason"))


def grow(db, policy, *numbers, live):
    """Versions one after the other, the last of `numbers` or another one live."""
    with db.begin() as connection:
        for number in numbers:
            path = f"v{number}"
            versions.insert(connection, NewVersion(policy.id, number, number - 1, None, path, "full", None))
        versions.set_live(connection, policy.id, live)


def test_before_any_turn_it_waits_for_the_policy(db, settings):
    outcome = close_batch(db, settings, NOW)
    assert isinstance(outcome, NoBatch)
    assert "no turn has come" in outcome.because


def test_it_waits_with_what_is_there_and_how_long(db, settings, policy):
    fill(db, policy, range(3))
    outcome = close_batch(db, settings, soon())
    assert isinstance(outcome, NoBatch)
    assert (outcome.current, outcome.needed) == (3, 4)
    assert outcome.oldest_seconds == pytest.approx(5, abs=4)


def test_a_full_batch_takes_the_oldest_and_leaves_the_rest(db, settings, policy):
    fill(db, policy, range(6))
    outcome = close_batch(db, settings, soon())
    assert isinstance(outcome, ClosedBatch)
    taken = rows(db, "select position, turn_id from samples order by position")
    oldest = rows(db, "select id from turns order by id limit 4")
    assert [turn for _, turn in taken] == [turn for (turn,) in oldest]
    assert rows(db, "select stage, count(*) from turn_states group by stage order by stage") == [
        ("batched", 4),
        ("scored", 2),
    ]
    assert rows(db, "select closed_because, status, live_version from batches") == [("full", "closed", 0)]


def test_a_partial_batch_closes_after_the_timeout_only_with_enough(db, settings, policy):
    fill(db, policy, range(1))
    short = close_batch(db, settings, NOW)
    assert isinstance(short, NoBatch)
    assert "partial batch needs 2" in short.because
    fill(db, policy, range(1, 3))
    assert isinstance(close_batch(db, settings, NOW), ClosedBatch)
    assert rows(db, "select closed_because from batches") == [("timeout",)]


def test_an_untrained_batch_is_answered_again_and_no_second_one_closes(db, settings, policy):
    fill(db, policy, range(12))
    first = close_batch(db, settings, soon())
    assert close_batch(db, settings, soon()) == first
    assert rows(db, "select count(*) from batches") == [(1,)]


def test_in_a_dry_run_a_batch_closes_and_it_says_that_nothing_trains(db, tmp_path):
    settings = config(tmp_path, trainer={"dry_run": True})
    policy = make_policy(db, settings)
    fill(db, policy, range(5))
    assert isinstance(close_batch(db, settings, soon()), ClosedBatch)
    outcome = close_batch(db, settings, soon())
    assert isinstance(outcome, NoBatch)
    assert "dry_run" in outcome.because
    assert outcome.current == 1


def test_bad_turns_are_dropped_with_their_reasons_and_good_ones_fill_the_batch(db, settings, policy):
    grow(db, policy, 1, 2, 3, 4, 5, live=5)
    fresh = {"policy_version_min": 5, "policy_version_max": 5}
    fill(db, policy, range(1), **{**fresh, "policy_version_min": 0})
    fill(db, policy, range(1, 2), **{**fresh, "prompt_ids": np.zeros(90, np.int32)})
    fill(db, policy, range(2, 3), **{**fresh, "prompt_ids": np.array([512], np.int32)})
    fill(db, policy, range(3, 4), policy_version_min=None, policy_version_max=None)
    fill(db, policy, range(4, 8), **fresh)
    assert isinstance(close_batch(db, settings, soon()), ClosedBatch)
    assert reasons(db) == {"stale": 1, "too_long": 1, "out_of_vocabulary": 1, "version_unknown": 1}
    assert rows(db, "select count(*) from samples") == [(4,)]


def test_what_a_rolled_back_version_answered_is_dropped(db, settings, policy):
    grow(db, policy, 1, 2, live=2)
    with db.begin() as connection:
        versions.set_live(connection, policy.id, 1)
    fill(db, policy, range(4), policy_version_min=2, policy_version_max=2)
    outcome = close_batch(db, settings, soon())
    assert isinstance(outcome, NoBatch)
    assert reasons(db) == {"not_an_ancestor": 4}


def test_the_reward_is_the_latest_score_that_is_not_null(db, settings, policy):
    fill(db, policy, range(4))
    with db.begin() as connection:
        connection.execute(
            text(
                "insert into scores (turn_id, judge, rubric, value, reason, created_at)"
                " select id, 'feedback', 'x', 0.5, 'feedback', now() + interval '1 min' from turns union all"
                " select id, 'llm', 'x', null, 'no_quorum', now() + interval '2 min' from turns"
            )
        )
    close_batch(db, settings, soon())
    assert rows(db, "select distinct reward from samples") == [(0.5,)]


def test_the_baseline_goes_on_from_the_batch_before(db, settings, policy):
    for start in (0, 10):
        fill(db, policy, range(start, start + 4))
        close_batch(db, settings, soon())
        with db.begin() as connection:
            connection.execute(text("update batches set status = 'trained'"))
    weights = [
        sum(row[2] for row in state["sessions"])
        for (state,) in rows(db, "select baseline from batches order by id")
    ]
    assert weights == [4, pytest.approx(4 + 4 * 0.5 ** (1 / 3))]


def test_two_closers_at_once_make_one_batch(db, settings, policy):
    fill(db, policy, range(8))
    outcomes = []
    both = threading.Barrier(2)

    def close():
        both.wait()
        outcomes.append(close_batch(db, settings, soon()))

    threads = [threading.Thread(target=close) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows(db, "select count(*) from batches") == [(1,)]
    assert rows(db, "select count(*) from samples") == [(4,)]
    assert any(isinstance(outcome, ClosedBatch) for outcome in outcomes)


def test_where_more_turns_wait_than_fit_the_newest_version_is_trained_first(db, tmp_path):
    """Oldest first would train every turn as stale as it may be, while more come than are trained."""
    settings = config(tmp_path, batch={"late_share": 0.25, "max_staleness": 2})
    policy = make_policy(db, settings)
    grow(db, policy, 1, 2, 3, 4, live=4)
    for version in (0, 2, 3, 4):
        numbers = range(10 * version, 10 * version + 3)
        fill(db, policy, numbers, policy_version_min=version, policy_version_max=version)
    assert isinstance(close_batch(db, settings, soon()), ClosedBatch)
    assert rows(db, "select staleness from samples order by position") == [(4,), (0,), (0,), (0,)]
    assert reasons(db) == {"stale": 2}
    assert rows(db, "select count(*) from turn_states where stage = 'scored'") == [(6,)]
