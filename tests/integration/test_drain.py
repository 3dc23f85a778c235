"""The drainer against Postgres: nothing twice, nothing lost, nothing in the way of anything else."""

import json
import threading
from uuid import UUID

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import OperationalError

from dukou.store.postgres_errors import PostgresUnreachableError
from dukou.store.tables import policies, processes, sessions, set_aside, turn_states, turns, versions
from gateway.drain import drainer
from gateway.drain import process as drain
from gateway.spool.format import Kind, encode
from gateway.spool.reader import SpoolReader, only_drainer
from tests.fakes.ferry import Ferry
from tests.fakes.spooled import (
    assistant,
    reply_body,
    reply_meta,
    request_body,
    request_meta,
    turn_id,
    user,
)


@pytest.fixture
def ferry(tmp_path, db):
    return Ferry(tmp_path, db)


def count(db, table):
    with db.connect() as connection:
        return connection.scalar(select(func.count()).select_from(table))


def session(db, session_id):
    with db.connect() as connection:
        return connection.execute(select(sessions).where(sessions.c.id == session_id)).one()


def segments(ferry):
    return sorted(path.name for path in ferry.folder.glob("*.seg"))


def test_a_turn_arrives_with_its_tokens_and_a_missing_logprob_is_null(ferry, db):
    body = reply_body("X").replace(b"-0.25", b"null")
    turn = ferry.worker.ask(ferry.clock, [user("hi")])
    ferry.worker.answer(turn, ferry.clock + 1, body=body)
    ferry.drain()
    row = ferry.row(UUID(turn))
    assert (row.prompt_ids.tolist(), row.response_ids.tolist()) == ([1, 2, 3], [11, 12])
    assert row.untrainable_reason == "logprob_not_finite"
    with db.connect() as connection:
        stored = connection.scalar(text("select response_logprobs::text from turns"))
    assert stored == "{-0.1,NULL}"


@pytest.mark.parametrize("stop", [151645, "151645"])
def test_the_view_says_what_ended_an_answer_and_which_tokens_may_be_trained(ferry, db, stop):
    call, after = ("<tool_call>", '\n{"name":"f", "arguments":{}}\n</tool_call>'), "<|im_end|>"
    entries = [[-0.5, token, text] for token, text in enumerate(("Hi", *call, after))]
    made = json.loads(reply_body("X", finish="tool_calls"))
    made["choices"][0] |= {
        "response_token_ids": [0, 1, 2, 3],
        "meta_info": {"output_token_logprobs": entries},
        "matched_stop": stop,
    }
    made["usage"] = {"completion_tokens": 4}
    turn = turn_id(ferry.clock)
    meta = reply_meta(turn, ferry.clock + 1, tool_calling={"parser": "qwen", "grammar": "xgrammar"})
    asked = request_body([user("hi")], tools=[{"function": {"name": "f", "strict": True}}])
    ferry.worker.request(request_meta(turn, ferry.clock), asked)
    ferry.worker.reply(meta, json.dumps(made).encode())
    ferry.drain()
    with db.connect() as connection:
        query = (
            "select stopped_by, json_typeof(stopped_by), trained_tokens, sampling_class, trainable from turn"
        )
        row = connection.execute(text(query)).one()
        matched = connection.scalar(select(turns.c.matched_stop))
    kind = "number" if stop == 151645 else "string"
    assert (row.stopped_by, row.json_typeof, matched) == (stop, kind, "151645")
    assert (row.trained_tokens.tolist(), row.sampling_class, row.trainable) == ([0, 1, 3, 4], "free", True)


def test_the_default_policy_and_its_version_0_are_made_once(ferry, db):
    ferry.say([user("hi")])
    ferry.drain()
    ferry.new_drainer().drain_once(db)
    with db.connect() as connection:
        assert connection.execute(select(policies.c.name, policies.c.live_version)).all() == [("default", 0)]
        row = connection.execute(select(versions)).one()
        policy = connection.scalar(select(policies.c.base_model))
    assert (row.version, row.status, row.form, row.parent, row.path) == (0, "live", "full", None, policy)


def test_records_that_are_read_again_are_written_once(ferry, db):
    first = ferry.say([user("1")], "A")
    second = ferry.say([user("1"), assistant("A"), user("2")], "B")
    ferry.drain()
    (ferry.folder / "positions.json").unlink()
    ferry.drainer = ferry.new_drainer()
    assert ferry.drain() == 2
    assert (count(db, turns), count(db, turn_states)) == (2, 2)
    assert ferry.state(first) == ("scorable", None, second)


def test_after_a_restart_nothing_that_is_settled_is_read_again(ferry):
    ferry.say([user("1")])
    ferry.drain()
    ferry.drainer = ferry.new_drainer()
    assert ferry.drain() == 0


def test_a_reply_in_a_later_segment_finds_its_request(ferry):
    turn = ferry.worker.ask(ferry.clock, [user("1")])
    ferry.drain()
    ferry.worker.next_segment()
    ferry.worker.answer(turn, ferry.clock + 1)
    ferry.drainer = ferry.new_drainer()
    assert ferry.drain() == 1
    assert ferry.row(UUID(turn)).status == "ok"


def test_what_a_killed_worker_left_is_adopted_and_interrupted(ferry):
    done = ferry.say([user("1")])
    lost = UUID(ferry.worker.ask(ferry.clock, [user("2")]))
    torn = encode(Kind.REQUEST, request_meta(turn_id(ferry.clock, 9), ferry.clock), request_body([user("3")]))
    ferry.worker.append(torn[:-5])
    ferry.drain()
    assert [row.id for row in ferry.rows()] == [done]
    ferry.worker.die()
    ferry.clock += 2
    ferry.drain()
    assert {row.id: row.status for row in ferry.rows()} == {done: "ok", lost: "interrupted"}
    assert ferry.state(lost) == ("dropped", "status", None)
    assert segments(ferry) == []


def test_a_living_workers_request_is_not_interrupted_however_long_it_takes(ferry):
    ferry.worker.ask(ferry.clock, [user("1")])
    for _ in range(5):
        ferry.clock += 600
        assert ferry.drain() == 0


def test_a_segment_stays_until_its_worker_lets_go_and_every_turn_is_written(ferry):
    ferry.say([user("1")])
    ferry.drain()
    ferry.clock += 2
    ferry.drain()
    assert len(segments(ferry)) == 1
    ferry.worker.die()
    waiting = ferry.new_worker()
    ferry.drain()
    assert segments(ferry) == ["77-2-0.seg"]
    waiting.die()
    ferry.drain()
    ferry.clock += 2
    ferry.drain()
    assert segments(ferry) == []


def test_a_new_segment_that_is_not_locked_yet_is_left_alone(ferry):
    young = ferry.folder / "88-99-0.seg"
    young.touch()
    ferry.drain()
    assert young.exists()


def test_damaged_bytes_are_skipped_and_what_follows_is_read(ferry):
    ferry.worker.append(b"\xd0\x4b garbage that is no record" + bytes(40))
    turn = ferry.say([user("1")])
    ferry.drain()
    assert [row.id for row in ferry.rows()] == [turn]


def test_a_row_that_postgres_refuses_says_so_and_blocks_nobody(ferry, db):
    good = ferry.say([user("1")], "A")
    bad = ferry.worker.ask(ferry.clock, [user("2")])
    ferry.worker.answer(bad, ferry.clock + 1, outcome="no such outcome")
    child = ferry.say([user("1"), assistant("A"), user("2")])
    ferry.drain()
    assert {row.id: row.untrainable_reason for row in ferry.rows()} == {
        good: None,
        UUID(bad): "unreadable",
        child: None,
    }
    assert ferry.row(child).parent_id == good
    assert ferry.row(UUID(bad)).status == "interrupted"
    with db.connect() as connection:
        aside = connection.execute(select(set_aside)).one()
    assert aside.id == UUID(bad)
    assert "ck_turns_status" in aside.error
    assert request_body([user("2")]) in aside.record
    ferry.drainer = ferry.new_drainer()
    assert ferry.drain() == 0


@pytest.mark.parametrize("broken", [{"at_ns": None}, {"session": {"wrong": 1}}, {"headers": "x"}])
def test_a_record_that_makes_no_turn_is_kept_and_shown(ferry, db, broken):
    meta = request_meta(turn_id(ferry.clock), ferry.clock) | broken
    ferry.worker.request(meta, request_body([user("x")]))
    ferry.worker.reply(reply_meta(meta["id"], ferry.clock + 1), reply_body("X"))
    good = ferry.say([user("1")])
    ferry.drain()
    reasons = {row.id: row.untrainable_reason for row in ferry.rows()}
    assert reasons == {UUID(meta["id"]): "unreadable", good: None}
    assert count(db, set_aside) == 1


@pytest.mark.parametrize(
    "turn", ["no uuid", "00000000000000000000000000000001", "ffffffffffff7fffbfffffffffffffff"]
)
def test_a_record_with_an_id_of_nobodys_is_only_set_aside(ferry, db, turn):
    ferry.worker.request(request_meta(turn, ferry.clock) | {"at_ns": None}, request_body([user("x")]))
    ferry.worker.reply(reply_meta(turn, ferry.clock + 1), reply_body("X"))
    good = ferry.say([user("1")])
    ferry.drain()
    assert [row.id for row in ferry.rows()] == [good]
    assert count(db, set_aside) == 1


def test_nul_reaches_postgres_marked_and_the_exact_body_beside(ferry):
    turn = turn_id(ferry.clock)
    exact = b'{"messages": [{"role": "user", "content": "a\\u0000b \\ud83d"}], "z": 1, "a": 1.0, "a": 2}'
    ferry.worker.request(request_meta(turn, ferry.clock), exact)
    ferry.worker.reply(reply_meta(turn, ferry.clock + 1), reply_body("x\x00y"))
    ferry.drain()
    row = ferry.row(UUID(turn))
    assert bytes(row.request_body) == exact
    assert (row.messages[0]["content"], row.response_text, row.text_altered) == ("a␀b �", "x␀y", True)


def test_choices_are_rows_of_one_session(ferry):
    body = json.loads(reply_body("X"))
    body["choices"].append(
        body["choices"][0] | {"index": 1, "message": {"role": "assistant", "content": "Y"}}
    )
    turn = ferry.worker.ask(ferry.clock, [user("q")])
    ferry.worker.answer(turn, ferry.clock + 0.5, body=json.dumps(body).encode())
    following = ferry.say([user("q"), assistant("Y"), user("go on")])
    ferry.drain()
    first, second, child = sorted(ferry.rows(), key=lambda row: (row.started_at, row.choice_index))
    assert [(row.request_id.hex, row.choice_index, row.ordinal) for row in (first, second)] == [
        (turn, 0, 0),
        (turn, 1, 1),
    ]
    assert first.session_id == second.session_id == child.session_id
    assert (child.id, child.parent_id) == (following, second.id)


def test_a_session_that_the_client_ends_waits_for_nothing(ferry, db):
    first = ferry.say([user("1")], "A")
    last = ferry.say([user("1"), assistant("A"), user("2")], session_done=True)
    ferry.drain()
    assert ferry.state(first) == ("scorable", None, last)
    assert ferry.state(last) == ("dropped", "no_next_state", None)
    assert session(db, first.hex).done_reason == "client"


def test_an_idle_session_ends_and_opens_again_when_the_user_comes_back(ferry, db):
    first = ferry.say([user("1")], "A")
    ferry.drain()
    ferry.clock += 1799
    ferry.drain()
    assert ferry.state(first) == ("awaiting_next", None, None)
    ferry.clock += 20
    ferry.drain()
    assert ferry.state(first) == ("dropped", "no_next_state", None)
    assert session(db, first.hex).done_reason == "idle"
    back = ferry.say([user("1"), assistant("A"), user("2")])
    ferry.drain()
    assert ferry.state(first) == ("scorable", None, back)
    assert session(db, first.hex).done_at is None


@pytest.mark.parametrize("in_one_batch", [False, True])
def test_a_long_session_goes_on_in_a_new_segment_and_every_turn_counts(tmp_path, db, in_one_batch):
    ferry = Ferry(tmp_path, db, max_turns=2)
    history, chain = [user("0")], []
    for number in range(5):
        chain.append(ferry.say(history, f"A{number}"))
        history += [assistant(f"A{number}"), user(f"next {number}")]
        if not in_one_batch:
            ferry.drain()
    ferry.drain()
    rows = sorted(ferry.rows(), key=lambda row: row.ordinal)
    assert [row.segment_id for row in rows] == [chain[0], chain[0], chain[2], chain[2], chain[4]]
    assert [row.parent_id for row in rows] == [None, *chain[:4]]
    assert [ferry.state(turn)[0] for turn in chain] == ["scorable"] * 4 + ["awaiting_next"]
    assert session(db, chain[0].hex).done_at is None


def test_what_the_learner_has_done_to_a_turn_is_left_alone(ferry, db):
    first = ferry.say([user("1")], "A")
    ferry.drain()
    with db.begin() as connection:
        connection.execute(turn_states.update().values(stage="dropped", reason="too_long"))
    ferry.say([user("1"), assistant("A"), user("2")])
    ferry.drain()
    assert ferry.state(first) == ("dropped", "too_long", None)


def test_a_request_that_repeats_the_history_without_more_brings_no_next_state(ferry):
    first = ferry.say([user("1")], "A")
    other = ferry.say([user("1"), assistant("A")], "B")
    ferry.drain()
    assert ferry.row(other).parent_id == first
    assert ferry.state(first) == ("awaiting_next", None, None)


def test_many_turns_go_in_several_batches_and_all_arrive(ferry, db, monkeypatch):
    monkeypatch.setattr(drainer, "BATCH_TURNS", 200)
    for number in range(450):
        ferry.say([user(f"{number}")])
    passes = [ferry.drainer.drain_once(db) for _ in range(3)]
    assert passes == [200, 200, 50]
    assert count(db, turns) == 450


def test_the_drainer_tells_that_it_lives(ferry, db):
    ferry.worker.ask(ferry.clock, [user("1")])
    ferry.drain()
    with db.connect() as connection:
        row = connection.execute(select(processes)).one()
    assert (row.name, row.doing, row.detail["in_flight"]) == ("drainer", "idle", 1)


def test_a_drainer_that_keeps_up_waits_before_the_next_batch(ferry, db, monkeypatch):
    ferry.say([user("1")])
    stop, steps, once = threading.Event(), [], drainer.Drainer.drain_once
    monkeypatch.setattr(drainer.Drainer, "drain_once", lambda *given: steps.append(once(*given)))

    def wait(seconds):
        steps.append(f"waits {seconds}")
        stop.set()

    drain.run(ferry.drainer, lambda: db, stop, wait)
    assert steps[:2] == [1, f"waits {drain.PAUSE}"]


def test_while_postgres_is_away_nothing_moves_and_it_is_said_once_a_minute(ferry, db, caplog):
    ferry.say([user("1")])
    stop, waits = threading.Event(), []

    def connect():
        if len(waits) < 30:
            raise PostgresUnreachableError("nobody answers")
        return db

    def wait(seconds):
        waits.append(seconds)
        ferry.clock += seconds
        if len(waits) > 32:
            stop.set()

    drain.run(ferry.drainer, connect, stop, wait)
    assert len(ferry.rows()) == 1
    assert waits[:7] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    assert sum(waits[:30]) > 60
    said = [record.message for record in caplog.records if "nothing is lost" in record.message]
    assert len(said) == 1 + int(sum(waits[:29]) // 60)


def test_a_commit_whose_answer_was_lost_is_repeated_without_harm(ferry, db, monkeypatch):
    turn = ferry.say([user("1")])
    commit, stop, failures = db.dialect.do_commit, threading.Event(), []

    def lose_the_answer(connection):
        commit(connection)
        with db.pool.connect() as own, own.cursor() as cursor:
            cursor.execute("select count(*) from turns")
            if cursor.fetchone()[0] and not failures:
                failures.append(1)
                raise OperationalError("COMMIT", {}, Exception("connection lost"))

    monkeypatch.setattr(db.dialect, "do_commit", lose_the_answer)
    drain.run(ferry.drainer, lambda: db, stop, lambda _: stop.set() if ferry.drainer.is_idle else None)
    assert failures == [1]
    assert [row.id for row in ferry.rows()] == [turn]
    assert count(db, turn_states) == 1


def test_the_last_pass_takes_along_what_came_just_before_the_end(ferry, db):
    stop = threading.Event()

    def wait(_):
        ferry.say([user("late")])
        stop.set()

    drain.run(ferry.drainer, lambda: db, stop, wait)
    assert len(ferry.rows()) == 1


def test_one_drainer_a_spool(tmp_path):
    with only_drainer(tmp_path) as first, only_drainer(tmp_path) as second:
        assert (first, second) == (True, False)
    with only_drainer(tmp_path) as again:
        assert again


def test_a_reader_keeps_places_and_never_bodies(ferry):
    ferry.worker.ask(ferry.clock, [user("x" * 100_000)])
    reader = SpoolReader(ferry.folder)
    reader.scan(ferry.clock, 10**9)
    assert reader.waiting == 1
    assert all(not isinstance(value, bytes) for value in vars(reader).values())


def test_a_scan_stops_at_its_budget_and_goes_on_there(ferry):
    for number in range(10):
        ferry.say([user("x" * 1000 + str(number))])
    reader = SpoolReader(ferry.folder)
    found = []
    while len(found) < 10:
        pairs = reader.scan(ferry.clock, 3000)
        assert 0 < len(pairs) < 10
        found += pairs
    assert len({pair.id for pair in found}) == 10
    assert reader.scan(ferry.clock, 3000) == []
    assert reader.is_caught_up


def test_a_record_without_an_id_is_set_aside(ferry, db):
    ferry.worker.request({"path": "/v1/chat/completions"}, b"{}")
    ferry.worker.reply({}, b"")
    good = ferry.say([user("1")])
    ferry.drain()
    assert [row.id for row in ferry.rows()] == [good]
    assert count(db, set_aside) == 2  # nothing says that the two belong together
