"""Postgres in trouble (D11, D18): it ends connections, has no room, or cannot hold one row."""

import threading

import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.exc import DBAPIError

from dukou.store.tables import set_aside
from gateway.drain import process as drain
from tests.fakes.ferry import Ferry
from tests.fakes.spooled import user

_REFUSE = """
create function refuse() returns trigger language plpgsql as $$
begin
    if new.response_text = 'refuse me' then
        raise exception 'no' using errcode = '{state}';
    end if;
    return new;
end $$
"""
_TRIGGER = "create trigger refuse before insert on turns for each row execute function refuse()"


@pytest.fixture
def ferry(tmp_path, db):
    return Ferry(tmp_path, db)


def refusing(db: Engine, state: str) -> None:
    """From now on a row that says so is answered with this SQLSTATE."""
    with db.begin() as connection:
        connection.exec_driver_sql(_REFUSE.format(state=state))
        connection.exec_driver_sql(_TRIGGER)


def drained(ferry: Ferry, db: Engine, waits: list[float], then) -> None:
    """Runs the drainer; `then` is called after each wait, and its truth ends the run."""
    stop = threading.Event()

    def wait(seconds: float) -> None:
        waits.append(seconds)
        ferry.clock += seconds
        if then(len(waits)):
            stop.set()

    drain.run(ferry.drainer, lambda: db, stop, wait)


def test_a_full_postgres_is_waited_for_quietly_and_goes_on_by_itself(ferry, db, caplog):
    """D18: no row is set aside for a fault that is not its own, and the log stays short."""
    refusing(db, "53100")  # disk_full
    ferry.say([user("1")], "refuse me")
    ferry.say([user("2")])
    waits: list[float] = []

    def then(count: int) -> bool:
        if count == 30:
            assert ferry.rows() == []
            with db.begin() as connection:
                connection.exec_driver_sql("drop trigger refuse on turns")
        return count > 31

    drained(ferry, db, waits, then)
    assert len(ferry.rows()) == 2
    assert waits[:4] == [0.1, 0.2, 0.4, 0.8]
    said = [record for record in caplog.records if "nothing is lost" in record.message]
    assert len(said) <= 1 + sum(waits) / drain.SAY_AGAIN
    with db.connect() as connection:
        assert connection.execute(select(set_aside)).all() == []


@pytest.mark.parametrize("state", ["54000", "22P05", "23514"])
def test_a_row_that_postgres_cannot_hold_says_so_and_the_batch_goes_on(ferry, db, state):
    refusing(db, state)  # program_limit_exceeded, untranslatable_character, check_violation
    good = [ferry.say([user("1")])]
    bad = ferry.say([user("2")], "refuse me")
    good.append(ferry.say([user("3")]))
    ferry.drain()
    reasons = {row.id: (row.untrainable_reason, row.error) for row in ferry.rows()}
    assert reasons == {good[0]: (None, None), bad: ("unreadable", reasons[bad][1]), good[1]: (None, None)}
    assert reasons[bad][1].startswith("no\n")
    with db.connect() as connection:
        assert connection.scalars(select(set_aside.c.id)).all() == [bad]


@pytest.mark.parametrize("number", [1, 5])
def test_an_error_that_may_be_anybodys_is_tried_twice_and_then_a_records(ferry, db, number):
    """Alone or among others: Postgres takes the row that says so, and so is not at fault itself."""
    refusing(db, "XX000")  # internal_error
    bad = ferry.say([user("2")], "refuse me")
    good = [ferry.say([user(f"{n}")]) for n in range(number - 1)]
    with pytest.raises(DBAPIError):
        ferry.drainer.drain_once(db)
    assert ferry.rows() == []
    ferry.drain()
    assert {row.id: row.untrainable_reason for row in ferry.rows()} == {
        bad: "unreadable",
        **dict.fromkeys(good),
    }


def test_a_postgres_that_takes_no_row_at_all_is_waited_for(ferry, db):
    """A table that lacks a column: nothing is set aside, however often it fails."""
    with db.begin() as connection:
        connection.exec_driver_sql("alter table turns rename column engine to engine_of_old")
    said = [ferry.say([user(f"{n}")]) for n in range(5)]
    for _ in range(4):
        with pytest.raises(DBAPIError):
            ferry.drainer.drain_once(db)
    with db.begin() as connection:
        assert connection.execute(select(set_aside)).all() == []
        connection.exec_driver_sql("alter table turns rename column engine_of_old to engine")
    ferry.drain()
    assert [row.id for row in ferry.rows()] == said


def test_a_drainer_whose_connections_are_ended_again_and_again_is_not_poisoned(ferry, db):
    """D11: the first error is of another type than those after it; each is only a reason to connect anew."""
    other = db.execution_options()
    said = []
    for number in range(5):
        said.append(ferry.say([user(f"{number}")]))
        with other.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(
                text(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where datname = current_database() and pid <> pg_backend_pid()"
                )
            )
        drained(ferry, db, [], lambda count: ferry.drainer.is_idle)
    assert [row.id for row in ferry.rows()] == said


def test_a_spool_that_cannot_be_read_just_now_is_waited_for(ferry, db, monkeypatch):
    made, calls, scan = ferry.say([user("1")]), [], ferry.drainer.reader.scan

    def failing(now: float, budget: int):
        calls.append(now)
        if len(calls) < 3:
            raise OSError(5, "Input/output error")
        return scan(now, budget)

    monkeypatch.setattr(ferry.drainer.reader, "scan", failing)
    waits: list[float] = []
    drained(ferry, db, waits, lambda count: count > 3)
    assert waits[:2] == [0.1, 0.2]
    assert [row.id for row in ferry.rows()] == [made]
