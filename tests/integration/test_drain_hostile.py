"""Good turns between records that hold anything at any place: every good one becomes a row."""

from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from sqlalchemy import Engine, func, select

from dukou.store.tables import set_aside, turns
from gateway.spool.format import Kind, encode
from tests.fakes.ferry import Ferry
from tests.fakes.grammar import CHANGES, ENDINGS, REPLIES, REQUESTS, examples
from tests.fakes.spooled import (
    assistant,
    reply_body,
    reply_meta,
    request_body,
    request_meta,
    turn_id,
    user,
)

EVERY = 10 * settings.default.max_examples  # 1,000 where the seed is fixed
_GOOD = st.just(reply_body("the answer"))
#: (request, reply, changes of the request's meta, changes of the reply's): one of them is hostile.
HOSTILE = st.one_of(
    st.tuples(REQUESTS, _GOOD, st.just({}), st.just({})),
    st.tuples(st.just(request_body([user("hello")])), REPLIES, st.just({}), st.just({})),
    st.tuples(st.just(request_body([user("hello")])), _GOOD, CHANGES, ENDINGS),
)


@pytest.fixture
def ferry(tmp_path, db):
    return Ferry(tmp_path, db)


def count(db: Engine, table) -> int:
    with db.connect() as connection:
        return connection.scalar(select(func.count()).select_from(table))


def put(ferry: Ferry, number: int, request: bytes, reply: bytes, changes=None, ending=None) -> UUID:
    """Writes a whole turn of these bytes."""
    turn = turn_id(ferry.clock, 1_000_000 + number)
    ferry.worker.request(request_meta(turn, ferry.clock) | (changes or {}), request)
    ferry.worker.reply(reply_meta(turn, ferry.clock + 0.5) | (ending or {}), reply)
    return UUID(turn)


def test_every_good_turn_becomes_a_row_and_every_hostile_one_too(ferry, db):
    good, hostile = [], []
    for number, one in enumerate(examples(HOSTILE, EVERY)):
        hostile.append(put(ferry, number, *one))
        good.append(ferry.say([user(f"question {number}")]))
        if number % 100 == 0:
            ferry.drain()
    ferry.give_up_waiting()
    with db.connect() as connection:
        rows = connection.execute(select(turns.c.request_id, turns.c.untrainable_reason, turns.c.error)).all()
    reasons = {row.request_id: row.untrainable_reason for row in rows}
    assert [turn for turn in good if reasons.get(turn, "lost") is not None] == []
    assert [turn for turn in hostile if turn not in reasons] == []
    refused = [row for row in rows if row.untrainable_reason == "unreadable"]
    assert all(row.error for row in refused)
    assert count(db, set_aside) == len(refused)
    assert ferry.new_drainer().drain_once(db) == 0


@pytest.mark.parametrize(
    ("request_bytes", "reply_bytes"),
    [
        (
            b'{"model":"m","messages":["hello",{"role":"assistant","content":"x"},'
            b'{"role":"user","content":"y"}]}',
            reply_body("z"),
        ),
        (
            request_body([user("hi")]),
            reply_body("z").replace(b'"index": 0', b'"index": 1099511627776'),
        ),
    ],
)
def test_fifty_good_turns_behind_what_once_stopped_all_recording(ferry, request_bytes, reply_bytes):
    bad = put(ferry, 0, request_bytes, reply_bytes)
    good = [ferry.say([user(f"{number}")]) for number in range(50)]
    ferry.give_up_waiting()
    assert [row.id for row in ferry.rows()] == [bad, *good]
    assert ferry.row(bad).untrainable_reason != "unreadable"


def test_a_record_that_only_fails_beside_others_is_found_among_them(ferry, db, monkeypatch):
    """Whatever the fault is, and wherever it shows: here in the middle of a batch's own transaction."""
    from gateway.drain import write

    good = [ferry.say([user(f"{number}")]) for number in range(20)]
    bad = ferry.say([user("poison")])
    good += [ferry.say([user(f"more {number}")]) for number in range(20)]
    place = write.lineage.place

    def failing(request, known):
        if request.id == bad and request.messages:
            raise RecursionError("deep")
        return place(request, known)

    monkeypatch.setattr(write.lineage, "place", failing)
    ferry.drain()
    assert {row.id for row in ferry.rows()} == {*good, bad}
    row = ferry.row(bad)
    assert (row.untrainable_reason, row.kind, row.error) == ("unreadable", "side", "RecursionError: deep")
    assert (bytes(row.request_body), row.status) == (request_body([user("poison")]), "ok")
    assert ferry.state(bad) == ("dropped", "unreadable", None)
    assert count(db, set_aside) == 1


def test_a_damaged_record_is_kept_and_what_follows_is_read(ferry, db):
    first = ferry.say([user("1")])
    turn = turn_id(ferry.clock, 77)
    whole = encode(Kind.REQUEST, request_meta(turn, ferry.clock), request_body([user("2")]), version=1)
    ferry.worker.append(whole[:-3] + b"???")  # the checksum tells
    long = bytearray(whole)
    long[7:11] = (2**31).to_bytes(4, "little")  # a length beyond the end of the file
    second = ferry.say([user("3")])
    ferry.worker.append(bytes(long))
    third = ferry.say([user("4")])
    ferry.drain()
    assert [row.id for row in ferry.rows()] == [first, second]
    ferry.worker.die()
    ferry.clock += 2
    ferry.drain()
    assert [row.id for row in ferry.rows()] == [first, second, third]
    with db.connect() as connection:
        kept = {bytes(row.record): row.error for row in connection.execute(select(set_aside))}
    assert kept.keys() == {whole[:-3] + b"???", bytes(long)}
    assert "checksum" in kept[whole[:-3] + b"???"]
    assert list(ferry.folder.glob("*.seg")) == []


@pytest.mark.parametrize("payload", [b"", b"\xff\xff\xff\xff{}", b"\2\0\0\0[]", b"\2\0\0\0{]"])
def test_a_record_whose_meta_cannot_be_read_is_kept_and_the_others_go_on(ferry, db, payload):
    import struct
    import zlib

    head = struct.pack("<2sBII", b"\xd0\x4b", 1, zlib.crc32(payload), len(payload))
    ferry.worker.append(head + payload)
    good = ferry.say([user("1")])
    ferry.drain()
    assert [row.id for row in ferry.rows()] == [good]
    assert count(db, set_aside) == 1


def test_records_without_an_id_are_all_kept(ferry, db):
    for number in range(3):
        ferry.worker.request({"path": "/v1/chat/completions"}, b"%d" % number)
    good = ferry.say([user("1"), assistant("A"), user("2")])
    ferry.give_up_waiting()
    assert [row.id for row in ferry.rows()] == [good]
    assert count(db, set_aside) == 3
