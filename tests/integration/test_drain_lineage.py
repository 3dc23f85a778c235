"""Sessions, parents and kinds, through the spool and Postgres. Clients send no session id unless said."""

from uuid import UUID

import pytest
from sqlalchemy import event

from tests.fakes.ferry import Ferry
from tests.fakes.spooled import (
    assistant,
    reply_body,
    reply_meta,
    request_body,
    request_meta,
    system,
    turn_id,
    user,
)

SUMMARY = "They spoke about ferries, tides and the price of a crossing."


@pytest.fixture
def ferry(tmp_path, db):
    return Ferry(tmp_path, db)


def test_a_growing_history_is_one_session_and_each_turn_the_child_of_the_one_before(ferry):
    """T1."""
    history = [system("S"), user("1")]
    first = ferry.say(history, "A1")
    history += [assistant("A1"), user("2")]
    second = ferry.say(history, "A2")
    history += [assistant("A2"), user("3")]
    third = ferry.say(history, "A3")
    ferry.drain()
    rows = [ferry.row(turn) for turn in (first, second, third)]
    assert [row.parent_id for row in rows] == [None, first, second]
    assert {row.session_id for row in rows} == {first.hex}
    assert {row.segment_id for row in rows} == {first}
    assert [(row.ordinal, row.session_source) for row in rows] == [(0, "new"), (1, "lineage"), (2, "lineage")]
    assert [row.parent_messages for row in rows] == [None, 3, 5]
    assert ferry.state(first) == ("scorable", None, second)
    assert ferry.state(third) == ("awaiting_next", None, None)


def test_the_same_holds_when_each_turn_is_drained_alone_and_by_a_new_drainer(ferry):
    history, chain = [user("1")], []
    for number in range(7):
        chain.append(ferry.say(history, f"A{number}"))
        ferry.drainer = ferry.new_drainer()
        ferry.drain()
        history += [assistant(f"A{number}"), user(f"next {number}")]
    assert [ferry.row(turn).parent_id for turn in chain] == [None, *chain[:-1]]
    assert [ferry.row(turn).ordinal for turn in chain] == list(range(7))


def test_two_keys_with_the_same_opening_never_share_a_session(ferry):
    """T2."""
    first = ferry.say([user("hi")], "X", key_id="k1")
    second = ferry.say([user("hi")], "X", key_id="k2")
    third = ferry.say([user("hi"), assistant("X"), user("go")], key_id="k1")
    fourth = ferry.say([user("hi"), assistant("X"), user("go")], key_id="k2")
    ferry.drain()
    assert [ferry.row(turn).parent_id for turn in (third, fourth)] == [first, second]
    assert ferry.row(third).session_id != ferry.row(fourth).session_id


def test_two_people_of_one_key_are_told_apart_by_their_answers(ferry):
    """T2."""
    at = ferry.clock
    asked = [ferry.worker.ask(at + number / 10, [user("hi")]) for number in range(2)]
    for turn, text in zip(asked, "XY", strict=True):
        ferry.worker.answer(turn, at + 1, text)
    ferry.clock += 2
    third = ferry.say([user("hi"), assistant("X"), user("go")])
    fourth = ferry.say([user("hi"), assistant("Y"), user("go")])
    ferry.drain()
    assert [ferry.row(turn).parent_id.hex for turn in (third, fourth)] == asked
    assert ferry.row(third).session_id != ferry.row(fourth).session_id


def test_identical_requests_at_the_same_time_are_a_group_and_no_retries(ferry):
    """P19."""
    asked = [ferry.worker.ask(ferry.clock + number / 100, [user("q")]) for number in range(8)]
    for number, turn in enumerate(asked):
        ferry.worker.answer(turn, ferry.clock + 1 + number / 10, f"answer {number}")
    ferry.drain()
    rows = ferry.rows()
    assert len({row.session_id for row in rows}) == 8
    assert len({row.prompt_hash for row in rows}) == 1
    assert all(row.trainable and row.retry_of is None for row in rows)


def test_a_regenerated_answer_is_a_sibling_in_the_same_session(ferry):
    """T10."""
    first = ferry.say([user("q")], "A")
    again = ferry.say([user("q")], "B")
    following = ferry.say([user("q"), assistant("B"), user("more")], "C")
    ferry.drain()
    assert [ferry.row(turn).parent_id for turn in (first, again, following)] == [None, None, again]
    assert len({row.session_id for row in ferry.rows()}) == 1
    assert ferry.state(first) == ("awaiting_next", None, None)
    assert ferry.state(again) == ("scorable", None, following)


def test_a_regenerated_answer_deep_in_a_conversation_has_the_same_parent(ferry):
    first = ferry.say([user("q")], "A")
    deep = [user("q"), assistant("A"), user("more")]
    turns = [ferry.say(deep, "B"), ferry.say(deep, "C")]
    ferry.drain()
    assert [ferry.row(turn).parent_id for turn in turns] == [first, first]
    assert ferry.state(first) == ("scorable", None, turns[0])


def test_the_same_opening_after_a_conversation_went_on_is_a_new_session(ferry):
    first = ferry.say([user("hi")], "A")
    ferry.say([user("hi"), assistant("A"), user("more")], "B")
    other = ferry.say([user("hi")], "A")
    ferry.drain()
    assert ferry.row(other).session_id != ferry.row(first).session_id


@pytest.mark.parametrize(
    "kept",
    [
        assistant("X"),
        assistant("<think>R1</think>X"),
        assistant("X", reasoning_content="R1"),
        assistant("\n\nX"),
        {"role": "assistant", "content": [{"type": "text", "text": "X"}]},
    ],
)
def test_stripped_or_kept_reasoning_leads_to_the_same_parent(ferry, kept):
    """T5."""
    turn = turn_id(ferry.clock)
    ferry.worker.request(request_meta(turn, ferry.clock), request_body([user("1")]))
    ferry.worker.reply(reply_meta(turn, ferry.clock + 0.5), reply_body("X", reasoning_content="R1"))
    following = ferry.say([user("1"), kept, user("2")])
    ferry.drain()
    assert ferry.row(following).parent_id == UUID(turn)


def test_rewritten_tool_arguments_lead_to_the_same_parent(ferry):
    call = {
        "id": "call_0",
        "type": "function",
        "function": {"name": "f", "arguments": '{"path": "a", "x": 1}'},
    }
    rewritten = call | {"function": {"name": "f", "arguments": '{"x":1,"path":"a"}'}}
    turn = turn_id(ferry.clock)
    ferry.worker.request(request_meta(turn, ferry.clock), request_body([user("1")]))
    ferry.worker.reply(reply_meta(turn, ferry.clock + 0.5), reply_body(None, "tool_calls", tool_calls=[call]))
    history = [user("1"), assistant("", tool_calls=[rewritten])]
    following = ferry.say([*history, {"role": "tool", "tool_call_id": "call_0", "content": "7"}])
    ferry.drain()
    assert ferry.row(following).parent_id == UUID(turn)
    assert ferry.row(UUID(turn)).tool_calls == [call]
    assert ferry.row(following).messages[1]["tool_calls"][0]["function"]["arguments"] == '{"x":1,"path":"a"}'


@pytest.mark.parametrize("kept", ["Once upon a", "Once upon", "Once upon a time"])
def test_a_stopped_answer_that_the_client_kept_is_the_parent_and_stays_untrained(ferry, kept):
    """T12."""
    stopped = UUID(ferry.worker.ask(ferry.clock, [user("tell")]))
    ferry.worker.answer(stopped.hex, ferry.clock + 0.5, "Once upon a", outcome="client_disconnect")
    following = ferry.say([user("tell"), assistant(kept), user("go on")])
    ferry.drain()
    assert ferry.row(following).parent_id == stopped
    assert ferry.state(stopped) == ("dropped", "status", None)


def test_a_shorter_text_than_a_whole_answer_is_no_match(ferry):
    ferry.say([user("tell")], "Once upon a time")
    other = ferry.say([user("tell"), assistant("Once upon"), user("go on")])
    ferry.give_up_waiting()
    assert ferry.row(other).parent_id is None


def test_a_summary_is_a_side_turn_and_what_opens_with_it_a_new_segment_of_the_session(ferry):
    """T4."""
    history = [system("S"), user("1")]
    first = ferry.say(history, "A1")
    history += [assistant("A1"), user("Summarise the conversation so far")]
    summary = ferry.say(history, SUMMARY)
    compacted = [system("S"), user(f"Summary: {SUMMARY}"), user("7")]
    seventh = ferry.say(compacted, "A7")
    eighth = ferry.say([*compacted, assistant("A7"), user("8")], "A8")
    ferry.drain()
    rows = {turn: ferry.row(turn) for turn in (first, summary, seventh, eighth)}
    assert (rows[summary].kind, rows[summary].kind_reason) == ("side", "summary")
    assert rows[summary].parent_id == first
    assert len({row.session_id for row in rows.values()}) == 1
    assert [rows[turn].segment_id for turn in (seventh, eighth)] == [seventh, seventh]
    assert [rows[turn].parent_id for turn in (seventh, eighth)] == [None, seventh]
    assert ferry.state(summary) == ("dropped", "side", None)
    assert ferry.state(first) == ("awaiting_next", None, None)


def test_an_explicit_session_holds_several_conversations_apart(ferry):
    """T9."""
    chat = {"session": {"id": "p1", "source": "x-session-id"}}
    histories = [[system(name), user("go")] for name in ("main", "agent 1", "agent 2")]
    chains: list[list[UUID]] = [[], [], []]
    for number in range(3):
        for history, chain in zip(histories, chains, strict=True):
            chain.append(ferry.say(history, f"A{number}", **chat))
            history += [assistant(f"A{number}"), user(f"next {number}")]
    ferry.drain()
    assert {row.session_id for row in ferry.rows()} == {"p1"}
    assert {row.session_source for row in ferry.rows()} == {"x-session-id"}
    for chain in chains:
        assert [ferry.row(turn).parent_id for turn in chain] == [None, *chain[:-1]]
        assert {ferry.row(turn).segment_id for turn in chain} == {chain[0]}
    assert sorted(row.ordinal for row in ferry.rows()) == list(range(9))


def test_a_match_in_another_session_is_no_parent(ferry):
    ferry.say([user("1")], "A", session={"id": "s1", "source": "path"})
    other = ferry.say([user("1"), assistant("A"), user("2")], session={"id": "s2", "source": "path"})
    ferry.give_up_waiting()
    assert (ferry.row(other).session_id, ferry.row(other).parent_id) == ("s2", None)


def test_a_named_parent_is_the_parent(ferry):
    first = ferry.say([user("1")], "A")
    other = ferry.say([user("compacted")], parent=first.hex)
    ferry.drain()
    row = ferry.row(other)
    assert (row.parent_id, row.session_id, row.parent_messages) == (first, first.hex, None)


def test_a_named_parent_of_another_key_is_none(ferry):
    first = ferry.say([user("1")], "A", key_id="k1")
    other = ferry.say([user("2")], parent=first.hex, key_id="k2")
    ferry.give_up_waiting()
    assert ferry.row(other).parent_id is None


def test_of_a_requests_attempts_only_the_last_is_trained(ferry):
    """P19."""
    key = {"idempotency-key": "once"}
    attempts = [ferry.worker.ask(ferry.clock, [user("q")], headers={**key, "x-stainless-retry-count": "0"})]
    ferry.worker.answer(attempts[0], ferry.clock + 4, "late", outcome="client_disconnect")
    attempts.append(
        ferry.worker.ask(ferry.clock + 2, [user("q")], headers={**key, "x-stainless-retry-count": "1"})
    )
    ferry.worker.answer(attempts[1], ferry.clock + 5, "arrived but was lost")
    attempts.append(
        ferry.worker.ask(ferry.clock + 7, [user("q")], headers={**key, "x-stainless-retry-count": "2"})
    )
    ferry.worker.answer(attempts[2], ferry.clock + 8, "good")
    ferry.drain()
    rows = [ferry.row(UUID(attempt)) for attempt in attempts]
    assert [row.untrainable_reason for row in rows] == ["status", "retry", None]
    assert [row.retry_of and row.retry_of.hex for row in rows] == [None, *attempts[:2]]
    assert len({row.session_id for row in rows}) == 1
    assert ferry.state(UUID(attempts[1])) == ("dropped", "retry", None)


def test_a_retry_count_without_a_key_finds_the_attempt_that_failed(ferry):
    """P19."""
    group = [ferry.worker.ask(ferry.clock + n / 10, [user("q")]) for n in range(3)]
    for number, turn in enumerate(group):
        ferry.worker.answer(turn, ferry.clock + 1, "x", outcome="upstream_error" if number == 1 else "ok")
    ferry.clock += 2
    retried = ferry.say([user("q")], headers={"x-stainless-retry-count": "1"})
    ferry.drain()
    assert ferry.row(retried).retry_of == UUID(group[1])
    assert [ferry.row(UUID(turn)).trainable for turn in group] == [True, False, True]


def test_the_attempt_that_a_client_went_on_from_is_the_one_that_counts(ferry):
    key = {"headers": {"idempotency-key": "once"}}
    first = ferry.say([user("q")], "A", **key)
    ferry.say([user("q"), assistant("A"), user("more")], "B")
    ferry.drain()
    again = ferry.say([user("q")], "A", **key)
    ferry.drain()
    assert ferry.row(first).trainable
    assert (ferry.row(again).retry_of, ferry.row(again).untrainable_reason) == (first, "retry")


def test_a_parent_that_is_drained_later_is_waited_for(ferry):
    other = ferry.new_worker()
    parent = UUID(other.ask(ferry.clock, [user("1")]))
    child = ferry.say([user("1"), assistant("A"), user("2")])
    grandchild = ferry.say([user("1"), assistant("A"), user("2"), assistant("answer"), user("3")])
    assert ferry.drain() == 0
    other.answer(parent.hex, ferry.clock, "A")
    assert ferry.drain() == 3
    assert [ferry.row(turn).parent_id for turn in (parent, child, grandchild)] == [None, parent, child]
    assert len({row.session_id for row in ferry.rows()}) == 1


def test_a_parent_that_another_gateway_writes_is_waited_for(ferry, tmp_path, db):
    """T17."""
    neighbour = Ferry(tmp_path / "neighbour", db)
    parent = neighbour.say([user("1")], "A")
    ferry.clock = neighbour.clock
    child = ferry.say([user("1"), assistant("A"), user("2")])
    assert ferry.drain() == 0
    neighbour.drain()
    ferry.clock += 0.3
    ferry.drain()
    assert ferry.row(child).parent_id == parent


def test_nobody_waits_longer_than_the_patience_for_a_history_from_elsewhere(ferry):
    child = ferry.say([user("1"), assistant("from elsewhere"), user("2")])
    assert ferry.drain() == 0
    ferry.clock += 1.9
    assert ferry.drain() == 0
    ferry.clock += 0.3
    assert ferry.drain() == 1
    assert (ferry.row(child).parent_id, ferry.row(child).session_source) == (None, "new")


def test_what_waited_through_a_restart_is_read_again(ferry):
    parent = UUID(ferry.worker.ask(ferry.clock, [user("1")]))
    child = ferry.say([user("1"), assistant("A"), user("2")])
    ferry.drain()
    ferry.drainer = ferry.new_drainer()
    ferry.worker.answer(parent.hex, ferry.clock, "A")
    ferry.drain()
    assert ferry.row(child).parent_id == parent


def test_a_look_up_uses_the_indexes_and_reads_no_history(ferry, db):
    """T15."""
    for number in range(300):
        ferry.say([user(f"{number}")])
    ferry.drain()
    looked: list[tuple[str, object]] = []
    event.listen(db, "before_cursor_execute", lambda *call: looked.append((call[2], call[3])))
    ferry.say([user("1"), assistant("answer"), user("2")])
    ferry.drain()
    statement, given = next(look for look in looked if "history_hash = wanted" in look[0].lower())
    with db.begin() as connection:
        connection.exec_driver_sql("analyze turns")
        connection.exec_driver_sql("set local enable_seqscan = off")  # 300 rows are few: what could be used?
        plan = "\n".join(row[0] for row in connection.exec_driver_sql("explain " + statement, given))
    assert "tenant_history_hash_started_at_idx" in plan
    assert "tenant_prompt_hash_started_at_idx" in plan
    assert "Seq Scan" not in plan
