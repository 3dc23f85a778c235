"""`python -m gateway aside`: what could not become turns is listed, and drained again."""

from uuid import UUID

import pytest
from sqlalchemy import func, select

from dukou.store import set_aside as kept
from dukou.store.tables import feedback, sessions, set_aside, turns
from gateway.drain import aside, write
from gateway.spool.format import Kind, encode
from tests.fakes.ferry import Ferry
from tests.fakes.spooled import assistant, request_body, request_meta, turn_id, user


@pytest.fixture
def ferry(tmp_path, db):
    return Ferry(tmp_path, db)


@pytest.fixture
def broken(ferry, monkeypatch):
    """A conversation whose second turn meets a fault of the code, which is mended afterwards."""
    first = ferry.say([user("1")], "A")
    second = ferry.say([user("1"), assistant("A"), user("2")], "B")
    place = write.lineage.place

    def failing(request, known):
        if request.id == second and request.messages:
            raise AttributeError("no such thing")
        return place(request, known)

    with monkeypatch.context() as patched:
        patched.setattr(write.lineage, "place", failing)
        ferry.drain()
    return first, second


def count(db, table) -> int:
    with db.connect() as connection:
        return connection.scalar(select(func.count()).select_from(table))


def test_what_is_set_aside_is_listed_with_its_error(ferry, db, broken):
    with db.connect() as connection:
        lines = list(aside.lines_of(kept.listed(connection)))
    assert len(lines) == 2
    assert str(broken[1]) in lines[0]
    assert lines[0].endswith("row     AttributeError: no such thing")
    assert "python -m gateway aside --again" in lines[1]


def test_nothing_set_aside_is_said_so():
    assert list(aside.lines_of([])) == ["nothing is set aside"]


def test_drained_again_a_turn_is_what_it_would_have_been(ferry, db, broken):
    first, second = broken
    assert ferry.row(second).untrainable_reason == "unreadable"
    assert ferry.state(first) == ("awaiting_next", None, None)
    assert aside.drain_again(db, ferry.config) == [aside.Result(second, None)]
    row = ferry.row(second)
    assert (row.untrainable_reason, row.error, row.kind, row.parent_id) == (None, None, "main", first)
    assert row.response_text == "B"
    assert ferry.state(first) == ("scorable", None, second)
    assert (count(db, set_aside), count(db, turns), count(db, sessions)) == (0, 2, 1)


def test_what_fails_again_stays_with_its_newer_error(ferry, db, broken, monkeypatch):
    def failing(request, known):
        raise AttributeError("still not")

    monkeypatch.setattr(write.lineage, "place", failing)
    [result] = aside.drain_again(db, ferry.config)
    assert result == aside.Result(broken[1], "AttributeError: still not")
    with db.connect() as connection:
        assert connection.scalars(select(set_aside.c.error)).all() == ["AttributeError: still not"]
    assert ferry.row(broken[1]).untrainable_reason == "unreadable"


def test_a_postgres_that_goes_away_meanwhile_is_not_the_records_fault(ferry, db, broken, monkeypatch):
    def gone(*_, **__):
        raise ConnectionResetError("gone")

    monkeypatch.setattr(aside, "record", gone)
    with pytest.raises(OSError, match="gone"):
        aside.drain_again(db, ferry.config)
    assert count(db, set_aside) == 1


def test_bytes_that_are_no_record_stay(ferry, db):
    turn = turn_id(ferry.clock, 5)
    whole = encode(Kind.REQUEST, request_meta(turn, ferry.clock), request_body([user("x")]))
    ferry.worker.append(whole[:-1] + b"?")
    ferry.say([user("1")])
    ferry.drain()
    [result] = aside.drain_again(db, ferry.config)
    assert "checksum" in (result.error or "")
    assert count(db, set_aside) == 1


def test_feedback_is_drained_again_too(ferry, db, monkeypatch):
    turn = ferry.say([user("1")])
    said = turn_id(ferry.clock, 6)
    body = b'{"turn_id": "%s", "rating": 1}' % turn.hex.encode()
    meta = {"id": said, "at_ns": int(ferry.clock * 1e9), "tenant": "default", "key_id": "k1"}
    ferry.worker.append(encode(Kind.FEEDBACK, meta, body))

    def failing(*_):
        raise ValueError("not today")

    with monkeypatch.context() as patched:
        patched.setattr("gateway.drain.feedback.read", failing)
        ferry.drain()
    assert (count(db, set_aside), count(db, feedback)) == (1, 0)
    assert aside.drain_again(db, ferry.config) == [aside.Result(UUID(said), None)]
    assert (count(db, set_aside), count(db, feedback)) == (0, 1)


def test_the_command_says_how_many_and_fails_where_some_stay(ferry, db, broken, monkeypatch, capsys):
    monkeypatch.setattr(aside, "connect", lambda config: db)
    assert aside.show(ferry.config, again=False) == 0
    assert str(broken[1]) in capsys.readouterr().out
    assert aside.show(ferry.config, again=True) == 0
    assert capsys.readouterr().out == "1 of 1 drained\n"
