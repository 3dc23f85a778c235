"""Turns that read alike: a health check's "ping" all day, and many sessions with one opening."""

import re
from uuid import UUID

import pytest
from sqlalchemy import text

from dukou.store import binary, earlier
from dukou.store.earlier import NEWEST
from tests.fakes.ferry import Ferry
from tests.fakes.spooled import assistant, reply_body, user


@pytest.fixture
def ferry(tmp_path, db):
    return Ferry(tmp_path, db)


def cut_short(ferry: Ferry, said: str) -> UUID:
    """A turn whose client stopped the answer."""
    ferry.clock += 1
    turn = ferry.worker.ask(ferry.clock, [user("ping")])
    ferry.worker.answer(turn, ferry.clock + 0.5, body=reply_body(said, None), outcome="client_disconnect")
    return UUID(turn)


def named(session: str) -> dict[str, object]:
    return {"session": {"id": session, "source": "x-session-id"}}


def test_of_equal_requests_only_the_newest_are_looked_at(ferry, db):
    sent = [ferry.say([user("ping")], "pong") for _ in range(NEWEST + 20)]
    ferry.drain()
    row = ferry.row(sent[0])
    with db.connect() as connection:
        found = earlier.find(
            connection,
            prompts=[(row.tenant, row.prompt_hash)],
            histories=[(row.tenant, row.history_hash)],
            exchanges=[(row.tenant, row.exchange_hash)],
        )
    assert {turn.id for turn in found} == set(sent[-NEWEST:])


def test_the_others_are_not_read_by_postgres_either(ferry, db):
    for _ in range(NEWEST * 8):
        ferry.say([user("ping")], "pong")
    last = ferry.say([user("other")], "pong")
    ferry.drain()
    row, alike = ferry.row(last), ferry.rows()[0]
    given = {
        "prompt_hash_of": binary.texts([row.tenant, row.tenant]),
        "prompt_hash": binary.blobs([row.prompt_hash, alike.prompt_hash]),
    }
    with db.begin() as connection:
        connection.exec_driver_sql("analyze turns")
        connection.exec_driver_sql("set local enable_seqscan = off")
        query = earlier._NEWEST_WITH.format(column="prompt_hash", limit=NEWEST)
        explained = text("explain (analyze, timing off) " + query)
        plan = [line[0] for line in connection.execute(explained, given)]
    # Of each scan: the average rows of a loop, and how often it ran.
    read = [
        re.search(r"actual rows=([\d.]+) loops=(\d+)", line)
        for line in plan
        if "Scan" in line and " on turns" in line
    ]
    assert sum(float(found[1]) * int(found[2]) for found in read if found) == NEWEST + 1
    assert not any("Removed" in line for line in plan)


def test_an_equal_turn_that_is_older_is_a_session_of_its_own_to_who_goes_on_from_it(ferry):
    """docs/lineage.md says so."""
    old = cut_short(ferry, "half an answ")
    ferry.drain()
    for _ in range(NEWEST):
        ferry.say([user("ping")], "pong", key_id="k1")
    ferry.drain()
    late = ferry.say([user("ping"), assistant("half an"), user("go on")])
    ferry.give_up_waiting()
    assert ferry.row(late).parent_id != old
    assert (ferry.row(late).parent_id, ferry.row(late).session_source) == (None, "new")


def test_among_the_newest_a_cut_answer_is_still_gone_on_from(ferry):
    for _ in range(NEWEST):
        ferry.say([user("ping")], "pong")
    old = cut_short(ferry, "half an answ")
    for _ in range(NEWEST - 1):
        ferry.say([user("ping")], "pong")
    ferry.drain()
    late = ferry.say([user("ping"), assistant("half an"), user("go on")])
    ferry.drain()
    assert ferry.row(late).parent_id == old


@pytest.mark.parametrize("one_batch", [True, False])
def test_a_named_session_is_gone_on_from_however_many_others_read_alike(ferry, one_batch):
    first = ferry.say([user("hi")], "A", **named("s0"))
    for number in range(1, NEWEST + 10):
        ferry.say([user("hi")], "A", **named(f"s{number}"))
    if not one_batch:
        ferry.drain()
    second = ferry.say([user("hi"), assistant("A"), user("go on")], "B", **named("s0"))
    ferry.drain()
    assert (ferry.row(second).parent_id, ferry.row(second).session_id) == (first, "s0")
    assert ferry.state(first) == ("scorable", None, second)
