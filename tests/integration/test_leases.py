"""Leases: one holder at a time, and no late write of an earlier one."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, Engine, select, text

from dukou.store import processes
from dukou.store.processes import Heartbeat, LearnerDetail, LeaseLostError
from dukou.store.tables import processes as rows


@pytest.fixture
def connection(db: Engine) -> Iterator[Connection]:
    with db.connect() as open_connection, open_connection.begin():
        yield open_connection


def expire(connection: Connection) -> None:
    connection.execute(text("update leases set until = clock_timestamp() - interval '1 second'"))


def test_a_held_lease_is_refused_to_others(connection: Connection) -> None:
    assert processes.acquire(connection, "trainer:default", "a", 60) == 1
    assert processes.acquire(connection, "trainer:default", "b", 60) is None
    assert processes.acquire(connection, "trainer:other", "b", 60) == 1


def test_an_expired_lease_goes_on_with_a_greater_token(connection: Connection) -> None:
    first = processes.acquire(connection, "x", "a", 60)
    expire(connection)
    second = processes.acquire(connection, "x", "b", 60)
    assert first is not None
    assert second == first + 1
    assert processes.acquire(connection, "x", "a", 60) is None


def test_what_was_begun_under_a_lost_lease_is_not_written(connection: Connection) -> None:
    token = processes.acquire(connection, "x", "a", 60)
    assert token is not None
    processes.check(connection, "x", token)
    expire(connection)
    processes.check(connection, "x", token)  # expired, but nobody came
    processes.acquire(connection, "x", "b", 60)
    with pytest.raises(LeaseLostError, match="the lease x was lost"):
        processes.check(connection, "x", token)
    assert not processes.renew(connection, "x", token, 60)
    assert not processes.release(connection, "x", token)


def test_a_renewed_lease_is_held_again(connection: Connection) -> None:
    token = processes.acquire(connection, "x", "a", 60)
    assert token is not None
    expire(connection)
    assert processes.renew(connection, "x", token, 60)
    assert processes.acquire(connection, "x", "b", 60) is None


def test_a_released_lease_is_free_at_once_and_its_token_is_not_used_again(connection: Connection) -> None:
    token = processes.acquire(connection, "x", "a", 60)
    assert token is not None
    assert processes.release(connection, "x", token)
    assert processes.acquire(connection, "x", "b", 60) == token + 1


def test_an_owner_that_restarts_has_its_lease_at_once_under_a_new_token(connection: Connection) -> None:
    first = processes.acquire(connection, "x", "a", 60)
    assert first is not None
    assert processes.acquire(connection, "x", "a", 60) == first + 1
    with pytest.raises(LeaseLostError):
        processes.check(connection, "x", first)


def test_a_checked_lease_cannot_be_taken_until_the_holder_commits(db: Engine) -> None:
    with db.begin() as holder:
        token = processes.acquire(holder, "x", "a", 60)
        assert token is not None
    with db.begin() as holder, db.connect() as other:
        expire(holder)
        processes.check(holder, "x", token)
        other.execute(text("set local lock_timeout = '50ms'"))
        with pytest.raises(Exception, match="lock timeout"):
            processes.acquire(other, "x", "b", 60)


def test_a_beat_replaces_the_last_one_and_keeps_the_start(connection: Connection) -> None:
    processes.start(connection, "learner", "starting")
    connection.execute(text("update processes set started_at = '2026-01-01', beat_at = '2026-01-01'"))
    detail = LearnerDetail(scores=True, judge_paused="401")
    processes.beat(connection, Heartbeat("learner", "waiting", "12 more scored turns", detail))
    row = connection.execute(select(rows)).one()
    assert (row.doing, row.waits_for) == ("waiting", "12 more scored turns")
    assert row.detail == {"scores": True, "trains": False, "judge_paused": "401", "trouble": None}
    assert row.started_at.year == 2026
    assert row.beat_at > row.started_at


def test_a_beat_that_waits_for_nothing_is_null_and_a_start_begins_anew(connection: Connection) -> None:
    processes.beat(connection, Heartbeat("learner", "training", "something", LearnerDetail(trains=True)))
    connection.execute(text("update processes set started_at = '2026-01-01'"))
    processes.start(connection, "learner", "starting")
    nulls = connection.execute(
        text("select waits_for is null, detail is null, started_at from processes")
    ).one()
    assert tuple(nulls)[:2] == (True, True)
    assert nulls.started_at.isoformat() > "2026-01-02"
