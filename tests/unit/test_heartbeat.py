"""Heartbeats as they are stored in `processes.detail`, and read back by another release."""

import pytest

from dukou.store.processes import DrainerDetail, Heartbeat, LearnerDetail

DRAINER = DrainerDetail(in_flight=1, to_write=2, waiting_for_parent=3, advanced_ago=4.5)
LEARNER = LearnerDetail(scores=True, trains=True, judge_paused="401: wrong key", trouble="out of memory")


@pytest.mark.parametrize(
    ("name", "detail"),
    [("drainer", DRAINER), ("learner", LEARNER), ("scorer", LEARNER), ("reconciler", None)],
)
def test_a_detail_comes_back_as_it_was_written(name, detail):
    assert Heartbeat.decode_detail(name, Heartbeat(name, "", detail=detail).encode_detail()) == detail


def test_unknown_keys_are_ignored_and_missing_ones_filled_in():
    assert Heartbeat.decode_detail("drainer", {"to_write": 5, "new": 1}) == DrainerDetail(to_write=5)
    assert Heartbeat.decode_detail("trainer", {"trains": True, "new": 1}) == LearnerDetail(trains=True)
    assert Heartbeat.decode_detail("of another release", {"trains": True}) is None


def test_values_of_another_type_are_unknown():
    found = Heartbeat.decode_detail("drainer", {"in_flight": "many", "to_write": None, "advanced_ago": []})
    assert found == DrainerDetail()


def test_what_is_undrained_is_unknown_where_one_count_is():
    assert (DRAINER.undrained, DRAINER.late) == (6, 5)
    assert DrainerDetail(to_write=2, waiting_for_parent=3).undrained is None


def test_another_process_has_nothing_of_a_drainer_or_a_learner():
    reconciler = Heartbeat("reconciler", "3 of 3 engines serve")
    assert (reconciler.drainer, reconciler.learner) == (DrainerDetail(), LearnerDetail())
