"""Parents that come late, windows of a conversation, and system messages that never stay the same."""

from uuid import UUID

import pytest
from sqlalchemy import select

from dukou.store.tables import orphans, sessions, turns
from tests.fakes.ferry import Ferry
from tests.fakes.spooled import assistant, reply_meta, request_meta, system, turn_id, user

LONG = "a ferry that leaves at dawn and comes back at dusk"


@pytest.fixture
def ferry(tmp_path, db):
    return Ferry(tmp_path, db)


@pytest.fixture
def neighbour(tmp_path, db):
    """Another gateway, whose drainer is away until the test lets it drain."""
    return Ferry(tmp_path / "neighbour", db)


def exchange(number):
    return [user(f"question {number}"), assistant(f"answer {number}: {LONG}")]


def chat(upto):
    """The messages of a request after `upto` answers."""
    return [message for number in range(upto) for message in exchange(number)] + [user(f"question {upto}")]


def said(number):
    return f"answer {number}: {LONG}"


def say_late(ferry, neighbour, child_request, **child):
    """A parent in the neighbour's spool, and its child, for which nobody waits any more."""
    parent = neighbour.say(chat(0), said(0))
    ferry.clock = neighbour.clock
    made = ferry.say(child_request, said(1), **child)
    ferry.give_up_waiting()
    return parent, made


def test_a_parent_that_comes_too_late_gets_its_child_and_the_childs_session(ferry, neighbour, db):
    parent, child = say_late(ferry, neighbour, chat(1))
    grandchild = ferry.say(chat(2), said(2))
    side = ferry.say([*chat(2), assistant(said(2)), user("Summarise the conversation so far")], "in short")
    ferry.drain()
    assert ferry.row(child).session_source == "new"
    neighbour.drain()
    rows = [ferry.row(turn) for turn in (parent, child, grandchild, side)]
    assert [row.parent_id for row in rows] == [None, parent, child, grandchild]
    assert {row.session_id for row in rows} == {parent.hex}
    assert {row.segment_id for row in rows} == {parent}
    assert [row.ordinal for row in rows] == [0, 1, 2, 0]
    assert [row.session_source for row in rows] == ["new", "lineage", "lineage", "lineage"]
    assert [row.parent_messages for row in rows[:3]] == [None, 2, 4]
    assert ferry.state(parent) == ("scorable", None, child)
    with db.connect() as connection:
        assert connection.scalars(select(sessions.c.id)).all() == [parent.hex]
        assert connection.execute(select(orphans)).all() == []


def test_a_middle_turn_that_comes_late_is_put_between(ferry, neighbour):
    first = ferry.say(chat(0), said(0))
    neighbour.clock = ferry.clock
    second = neighbour.say(chat(1), said(1))
    ferry.clock = neighbour.clock
    third = ferry.say(chat(2), said(2))
    ferry.give_up_waiting()
    assert ferry.row(third).parent_id == first
    neighbour.drain()
    assert [ferry.row(turn).parent_id for turn in (first, second, third)] == [None, first, second]
    assert [ferry.row(turn).ordinal for turn in (first, second, third)] == [0, 1, 2]
    assert [ferry.state(turn)[2] for turn in (first, second)] == [second, third]


def test_regenerated_children_all_find_a_late_parent(ferry, neighbour):
    parent, child = say_late(ferry, neighbour, chat(1))
    again = ferry.say(chat(1), "another answer")
    ferry.give_up_waiting()
    neighbour.drain()
    assert [ferry.row(turn).parent_id for turn in (child, again)] == [parent, parent]
    assert {row.session_id for row in ferry.rows()} == {parent.hex}
    assert ferry.state(parent)[2] == child


def test_a_late_parent_whose_answer_was_stopped_is_found_by_what_the_client_kept(ferry, neighbour):
    stopped = UUID(neighbour.worker.ask(neighbour.clock, chat(0)))
    neighbour.worker.answer(
        stopped.hex, neighbour.clock + 0.5, "Once upon a time", outcome="client_disconnect"
    )
    ferry.clock = neighbour.clock + 1
    child = ferry.say([*chat(0), assistant("Once upon"), user("go on")])
    ferry.give_up_waiting()
    neighbour.clock += 2
    neighbour.drain()
    assert ferry.row(child).parent_id == stopped


def test_a_late_parent_that_the_client_names(ferry, neighbour):
    parent = turn_id(neighbour.clock + 1, 77)
    ferry.clock = neighbour.clock + 3
    child = ferry.say([user("compacted")], parent=parent)
    ferry.give_up_waiting()
    neighbour.worker.request(request_meta(parent, neighbour.clock + 1), b'{"messages": []}')
    neighbour.worker.reply(reply_meta(parent, neighbour.clock + 2), b"{}")
    neighbour.drain()
    row = ferry.row(child)
    assert (row.parent_id, row.parent_messages, row.session_id) == (UUID(parent), None, parent)


@pytest.mark.parametrize(
    ("parents", "childs"),
    [
        ({"key_id": "k2"}, {}),
        ({"session": {"id": "s1", "source": "path"}}, {"session": {"id": "s2", "source": "path"}}),
    ],
)
def test_a_late_turn_of_another_key_or_named_session_adopts_nobody(ferry, neighbour, parents, childs):
    neighbour.say(chat(0), said(0), **parents)
    ferry.clock = neighbour.clock
    child = ferry.say(chat(1), said(1), **childs)
    ferry.give_up_waiting()
    neighbour.drain()
    assert ferry.row(child).parent_id is None


def test_a_named_session_stays_and_its_chain_is_mended(ferry, neighbour):
    named = {"session": {"id": "p1", "source": "x-session-id"}}
    parent = neighbour.say(chat(0), said(0), **named)
    ferry.clock = neighbour.clock
    child = ferry.say(chat(1), said(1), **named)
    ferry.give_up_waiting()
    neighbour.drain()
    row = ferry.row(child)
    assert (row.parent_id, row.session_id, row.segment_id) == (parent, "p1", parent)
    assert row.session_source == "x-session-id"
    assert [ferry.row(turn).ordinal for turn in (parent, child)] == [0, 1]


def test_two_drainers_that_write_parent_and_child_at_once_are_put_right_by_the_sweep(ferry, neighbour, db):
    parent, child = say_late(ferry, neighbour, chat(1))
    with db.begin() as connection:  # as if neither transaction had seen the other
        hidden = connection.execute(select(orphans)).mappings().one()
        connection.execute(orphans.delete())
    neighbour.drain()
    assert ferry.row(child).parent_id is None
    with db.begin() as connection:
        connection.execute(orphans.insert(), dict(hidden))
    ferry.clock += 11
    ferry.drain()
    assert ferry.row(child).parent_id == parent


def test_after_a_week_nobody_looks_for_a_parent_any_more(ferry, db):
    ferry.say(chat(1), said(1))
    ferry.give_up_waiting()
    with db.connect() as connection:
        assert len(connection.execute(select(orphans)).all()) == 1
    ferry.clock += 8 * 86400
    ferry.drain()
    with db.connect() as connection:
        assert connection.execute(select(orphans)).all() == []


def test_a_sliding_window_is_a_new_segment_of_the_session_below_the_turn_it_goes_on_from(ferry):
    chain = [ferry.say([system("S"), *chat(number)], said(number)) for number in range(4)]
    window = ferry.say([system("S"), *chat(4)[4:]], said(4))
    ferry.give_up_waiting()
    row = ferry.row(window)
    assert (row.parent_id, row.session_id, row.segment_id) == (chain[3], chain[0].hex, window)
    assert row.parent_messages == 5
    assert ferry.state(chain[3]) == ("scorable", None, window)


def test_a_conversation_in_windows_from_end_to_end_is_one_chain(ferry):
    chain = []
    for number in range(8):
        chain.append(ferry.say([system("S"), *chat(number)[-5:]], said(number)))
        ferry.give_up_waiting()
    rows = [ferry.row(turn) for turn in chain]
    assert [row.parent_id for row in rows] == [None, *chain[:-1]]
    assert {row.session_id for row in rows} == {chain[0].hex}


def test_a_system_message_that_changes_every_time_does_not_part_a_conversation(ferry):
    chain = []
    for number in range(4):
        found = f"Answer from these documents: {number * 7919}"
        chain.append(ferry.say([system(found), *chat(number)], said(number)))
        ferry.give_up_waiting()
    assert [ferry.row(turn).parent_id for turn in chain] == [None, *chain[:-1]]
    assert {ferry.row(turn).session_id for turn in chain} == {chain[0].hex}


def test_a_date_in_the_system_message_does_not_even_begin_a_segment(ferry):
    days = ["Today's date: 2026-11-28", "Today's date: 2026-11-29"]
    first = ferry.say([system(f"Be kind.\n{days[0]}"), *chat(0)], said(0))
    second = ferry.say([system(f"Be kind.\n{days[1]}"), *chat(1)], said(1))
    ferry.drain()
    assert (ferry.row(second).parent_id, ferry.row(second).segment_id) == (first, first)


def test_two_conversations_that_read_alike_are_never_joined(ferry):
    for name in ("one", "two"):
        ferry.say([system(name), user("question 0")], said(0))
    window = ferry.say([system("three"), *chat(1)], said(1))
    ferry.give_up_waiting()
    assert ferry.row(window).parent_id is None
    assert ferry.row(window).session_source == "new"


def test_a_short_exchange_alone_joins_nothing(ferry):
    ferry.say([system("one"), user("hi")], "hello")
    other = ferry.say([system("two"), user("hi"), assistant("hello"), user("so")])
    ferry.give_up_waiting()
    assert ferry.row(other).parent_id is None


def test_a_window_whose_older_exchanges_are_of_another_conversation_is_not_joined(ferry, db):
    ferry.say([system("one"), *chat(0)], said(0))
    ferry.say([system("one"), *chat(1)], said(1))
    other = [system("two"), user("something else"), assistant("and its answer"), *exchange(1), user("more")]
    made = ferry.say(other)
    ferry.give_up_waiting()
    assert ferry.row(made).parent_id is None
    with db.connect() as connection:
        assert len(set(connection.scalars(select(turns.c.session_id)))) == 2
