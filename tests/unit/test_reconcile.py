"""Decisions about one engine, from values to values."""

from dataclasses import replace

import pytest

from gateway.reconcile.decide import (
    DEAD_AFTER_SECONDS,
    MAX_TRIES,
    Act,
    Failed,
    Loaded,
    Memory,
    Refused,
    Target,
    View,
    adapter_version,
    after,
    decide,
    gives_up,
    label_version,
    waiting,
)
from gateway.reconcile.sglang import Health

FULL = Target(4, "full", "versions/4", None)
ADAPTER = Target(4, "adapter", "versions/4", "default-v4")
AT_3 = Memory(span=(3, 3), dialect="sglang")
READY_3 = View(Health.READY, "sglang", "3")


def test_an_engine_at_the_live_version_is_ready_and_left_alone() -> None:
    decision = decide(View(Health.READY, "sglang", "4"), replace(AT_3, span=(4, 4)), FULL, 0)
    assert decision.act is Act.WAIT
    assert (decision.route.state, decision.route.version_low, decision.route.version_high) == ("ready", 4, 4)


def test_a_load_is_announced_with_both_versions_before_it_begins() -> None:
    decision = decide(READY_3, AT_3, FULL, 0)
    assert decision.act is Act.LOAD
    assert (decision.route.state, decision.route.version_low, decision.route.version_high) == (
        "updating",
        3,
        4,
    )
    assert decision.memory.updating


def test_a_rollback_announces_the_lower_version_first() -> None:
    decision = decide(View(Health.READY, "sglang", "5"), Memory(span=(5, 5)), FULL, 0)
    assert (decision.route.version_low, decision.route.version_high) == (4, 5)


def test_an_adapter_loads_while_the_old_one_serves() -> None:
    view = View(Health.READY, "sglang", "0", frozenset({"default-v3"}))
    decision = decide(view, Memory(span=(3, 3), adapter="default-v3"), ADAPTER, 0)
    assert decision.act is Act.LOAD
    assert (decision.route.state, decision.route.version_low, decision.route.version_high) == ("ready", 3, 3)
    assert decision.route.adapter == "default-v3"


@pytest.mark.parametrize("label", ["0", "default"])
def test_a_restarted_engine_gets_no_traffic_until_it_is_at_the_live_version(label: str) -> None:
    waiting = Memory(span=(4, 4), failed=4, failures=1, retry_at=10, error="disk")
    decision = decide(View(Health.READY, "sglang", label), waiting, FULL, 5)
    assert decision.act is Act.WAIT
    assert decision.route.state == "starting"


def test_a_restarted_engine_without_its_adapter_gets_no_traffic() -> None:
    memory = Memory(span=(4, 4), adapter="default-v4", failed=4, failures=1, retry_at=10)
    decision = decide(View(Health.READY, "sglang", "0"), memory, ADAPTER, 5)
    assert decision.route.state == "starting"
    assert decision.route.adapter is None


def test_a_label_that_nobody_verified_is_probed_before_traffic() -> None:
    decision = decide(View(Health.READY, "sglang", "4"), Memory(), FULL, 0)
    assert decision.act is Act.VERIFY
    assert decision.route.state == "starting"


def test_a_failed_load_that_touched_nothing_keeps_the_old_version_in_service() -> None:
    decision = decide(READY_3, AT_3, FULL, 0)
    memory = after(decision.memory, AT_3, FULL, Failed("no such path", touched=False, blame=True), 0)
    again = decide(READY_3, memory, FULL, 0.5)
    assert again.act is Act.WAIT
    assert (again.route.state, again.route.version_low, again.route.version_high) == ("ready", 3, 3)
    assert again.route.reason == "no such path"


def test_a_failed_load_that_may_have_touched_the_weights_takes_the_engine_out() -> None:
    decision = decide(READY_3, AT_3, FULL, 0)
    memory = after(decision.memory, AT_3, FULL, Failed("half", touched=True, blame=True), 0)
    again = decide(View(Health.READY, "sglang", "3"), memory, FULL, 0.5)
    assert again.route.state == "starting"
    assert (again.route.version_low, again.route.version_high) == (3, 4)


def test_retries_are_spaced_further_and_further_apart() -> None:
    memory, spaces = AT_3, []
    for _ in range(9):
        memory = after(memory, memory, FULL, Failed("no", touched=False, blame=True), 100.0)
        spaces.append(memory.retry_at - 100.0)
    assert spaces == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert decide(READY_3, memory, FULL, 159.9).act is Act.WAIT
    assert decide(READY_3, memory, FULL, 160).act is Act.LOAD


def test_another_live_version_is_tried_at_once_after_a_failure() -> None:
    memory = after(AT_3, AT_3, FULL, Failed("no", touched=False, blame=True), 0)
    assert decide(READY_3, memory, replace(FULL, version=5), 0).act is Act.LOAD


def test_only_failures_that_are_its_own_fault_count_against_a_version() -> None:
    innocent = guilty = AT_3
    for _ in range(MAX_TRIES):
        innocent = after(innocent, innocent, FULL, Failed("gone", touched=False, blame=False), 0)
        guilty = after(guilty, guilty, FULL, Failed("no", touched=False, blame=True), 0)
    assert not gives_up(innocent, FULL)
    assert gives_up(guilty, FULL)
    assert not gives_up(replace(guilty, failed=0), replace(FULL, version=0))


def test_after_a_refusal_the_ancestor_is_loaded_without_a_pause() -> None:
    decision = decide(READY_3, AT_3, FULL, 0)
    memory = after(decision.memory, AT_3, FULL, Refused("probe", touched=True), 0)
    back = decide(View(Health.READY, "sglang", "4"), memory, replace(FULL, version=3), 0)
    assert back.act is Act.LOAD
    assert (back.route.version_low, back.route.version_high) == (3, 4)


def test_a_loaded_version_is_remembered_as_verified() -> None:
    memory = after(Memory(updating=True, span=(3, 4), dialect="sglang"), AT_3, FULL, Loaded({}), 0)
    assert memory == Memory(span=(4, 4), dialect="sglang")


@pytest.mark.parametrize(
    ("health", "memory", "state", "act"),
    [
        (Health.DEAD, AT_3, "dead", Act.WAIT),
        (Health.STARTING, AT_3, "starting", Act.WAIT),
        (Health.PAUSED, AT_3, "paused", Act.WAIT),
        (Health.PAUSED, replace(AT_3, updating=True), "updating", Act.RESUME),
        (Health.SILENT, AT_3, "ready", Act.WAIT),
        (Health.SILENT, Memory(), "starting", Act.WAIT),
    ],
)
def test_dead_paused_starting_and_busy_are_told_apart(
    health: Health, memory: Memory, state: str, act: Act
) -> None:
    decision = decide(View(health), memory, FULL, 0)
    assert (decision.route.state, decision.act) == (state, act)


def test_long_silence_is_death() -> None:
    first = decide(View(Health.SILENT), AT_3, FULL, 100)
    later = decide(View(Health.SILENT), first.memory, FULL, 100 + DEAD_AFTER_SECONDS)
    assert first.route.state == "ready"
    assert later.route.state == "dead"
    answered = decide(READY_3, later.memory, None, 131)
    assert answered.memory.silent_since is None


def test_without_a_known_live_version_users_are_served_by_what_is_there() -> None:
    decision = decide(View(Health.READY, "sglang", "0"), Memory(), None, 0)
    assert (decision.act, decision.route.state, decision.route.version_low) == (Act.WAIT, "ready", 0)


def test_another_servers_version_is_unknown_not_zero() -> None:
    decision = decide(View(Health.READY, "plain"), Memory(), FULL, 0)
    assert (decision.act, decision.route.state) == (Act.WAIT, "ready")
    assert decision.route.version_low is None


@pytest.mark.parametrize(
    ("label", "version"), [("default", 0), ("0", 0), ("17", 17), ("main", None), ("-1", None), (None, None)]
)
def test_a_label_is_read_as_a_version_or_not_at_all(label: str | None, version: int | None) -> None:
    assert label_version(label) == version


@pytest.mark.parametrize(
    ("name", "version"), [("default-v10", 10), ("other-v1", None), ("default-vision", None)]
)
def test_a_version_is_read_from_an_adapters_name(name: str, version: int | None) -> None:
    assert adapter_version(name, "default") == version


def test_a_target_that_has_to_wait_leaves_the_engine_in_service() -> None:
    decision = waiting(READY_3, AT_3, FULL, "another engine swaps its weights")
    assert (decision.act, decision.route.state, decision.route.version_low) == (Act.WAIT, "ready", 3)
    assert decision.route.reason == "another engine swaps its weights"
