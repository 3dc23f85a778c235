"""Turns are stored once and read back whole: bodies, messages, ids; partitions, retention, forgetting."""

import json
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from sqlalchemy import Engine, text

from dukou.store import bases, forget, partitions, retention
from dukou.store.partitions import Period
from dukou.store.states import Stage
from tests.fakes.ferry import START, Ferry
from tests.fakes.spooled import assistant, reply_meta, request_meta, turn_id, user
from tests.fakes.turns import add_turn

LONG = 'an answer of more than sixty-four characters, so that it is worth a reference: é\n"quoted"'
DAY = 86_400.0


@pytest.fixture
def ferry(tmp_path, db):
    return Ferry(tmp_path, db)


def say(ferry: Ferry, body: bytes, prompt: list[int], answer: list[int], text_said: str = LONG) -> UUID:
    """A turn with these bytes and ids."""
    ferry.clock += 1
    turn = turn_id(ferry.clock)
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text_said},
        "finish_reason": "stop",
        "prompt_token_ids": prompt,
        "response_token_ids": answer,
        "meta_info": {"output_token_logprobs": [[-0.5, one, None] for one in answer]},
    }
    ferry.worker.request(request_meta(turn, ferry.clock), body)
    ferry.worker.reply(reply_meta(turn, ferry.clock), json.dumps({"choices": [choice]}).encode())
    return UUID(turn)


def conversation(ferry: Ferry, count: int, **dumps: Any) -> list[tuple[UUID, bytes, list[int], list[Any]]]:
    """Turns that each go on from the last: id, body, prompt ids and messages."""
    messages: list[Any] = [{"role": "system", "content": "be brief"}]
    prompt, told = [1, 2], []
    for number in range(count):
        messages = [*messages, user(f"question {number}")]
        prompt = [*prompt, 100 + number]
        body = json.dumps({"model": "policy", "messages": messages, "tools": [{"z": 1, "a": 2}]}, **dumps)
        answer = [200 + number, 300 + number]
        told.append((say(ferry, body.encode(), prompt, answer), body.encode(), prompt, messages))
        messages, prompt = [*messages, assistant(LONG)], prompt + answer
    return told


def view(db: Engine, columns: str) -> list[Any]:
    with db.connect() as connection:
        return list(connection.execute(text(f"select {columns} from turn order by id")))


@pytest.mark.parametrize("every", [bases.MAX_DEPTH, 2, 0])
def test_a_conversation_reads_back_whole_however_it_is_cut(ferry, db, monkeypatch, every):
    monkeypatch.setattr(bases, "MAX_DEPTH", every)
    told = conversation(ferry, 5)
    ferry.drain()
    rows = view(db, "id, turn_request_body(id), prompt_ids, messages, tools")
    assert [(row[0], bytes(row[1]), row[2].tolist(), row[3]) for row in rows] == told
    assert rows[4].tools == [{"z": 1, "a": 2}]
    with db.connect() as connection:
        depths = list(connection.scalars(text("select depth from turns order by id")))
        trajectory = connection.scalar(
            text("select prompt_ids from trajectory order by ordinal desc limit 1")
        )
    assert depths == [min(number, number % (every + 1)) for number in range(5)]
    assert trajectory.tolist() == told[4][2]


@pytest.mark.parametrize(
    "dumps",
    [{}, {"ensure_ascii": False, "separators": (",", ":")}, {"indent": 2}, {"sort_keys": True}],
)
def test_a_body_is_the_clients_to_the_byte_also_where_it_repeats_an_answer(ferry, db, dumps):
    told = conversation(ferry, 3, **dumps)
    ferry.drain()
    assert [bytes(row[0]) for row in view(db, "turn_request_body(id)")] == [body for _, body, _, _ in told]
    assert [row[0] for row in view(db, "messages")] == [messages for _, _, _, messages in told]


def test_a_conversation_is_stored_once(ferry, db):
    conversation(ferry, 6, ensure_ascii=False)
    ferry.drain()
    with db.connect() as connection:
        bodies = [bytes(body) for body in connection.scalars(text("select body from contents"))]
        suffixes = connection.scalar(text("select sum(cardinality(prompt_ids)) from turns"))
        answers = connection.scalar(text("select count(*) from contents where answer_id is not null"))
    assert len(bodies) == 1 + 6 + 1 + 2  # the system's and six questions, one answer's frame, rest and tools
    assert (suffixes, answers) == (2 + 6, 1)
    assert not any(b"worth a reference" in body for body in bodies)


def test_a_changed_system_prompt_shares_the_messages_after_it(ferry, db):
    for clock in ("10:00", "10:01", "10:02"):
        system = {"role": "system", "content": clock}
        body = json.dumps({"messages": [system, user("a long question that never changes")]}).encode()
        say(ferry, body, [1], [2])
    ferry.drain()
    with db.connect() as connection:
        count = connection.scalar(
            text("select count(*) from contents where position('question' in body) > 0")
        )
    assert count == 1


def test_two_tenants_share_nothing(ferry, db):
    for tenant in ("a", "b"):
        ferry.say([user("the same")], tenant=tenant)
    ferry.drain()
    with db.connect() as connection:
        tenants = list(connection.scalars(text("select tenant from contents order by 1")))
    assert tenants == ["a", "a", "b", "b"]


def test_choices_share_their_prompt(ferry, db):
    ferry.clock += 1
    turn = turn_id(ferry.clock)
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": f"choice {index}"},
            "finish_reason": "stop",
            "prompt_token_ids": [1, 2, 3],
            "response_token_ids": [7],
            "meta_info": {"output_token_logprobs": [[-0.5, 7, None]]},
        }
        for index in (0, 1)
    ]
    ferry.worker.request(
        request_meta(turn, ferry.clock), b'{"messages":[{"role":"user","content":"q"}],"n":2}'
    )
    ferry.worker.reply(reply_meta(turn, ferry.clock), json.dumps({"choices": choices}).encode())
    ferry.drain()
    assert [row[0].tolist() for row in view(db, "prompt_ids")] == [[1, 2, 3], [1, 2, 3]]
    with db.connect() as connection:
        assert list(connection.scalars(text("select base_tokens from turns order by base_tokens"))) == [0, 3]


def test_at_a_partitions_border_a_turn_is_stored_whole(ferry, db):
    before = conversation(ferry, 2)
    ferry.drain()
    moment = datetime.fromtimestamp(ferry.clock, UTC)
    ferry.clock += 40 * DAY
    messages = [*before[1][3], assistant(LONG), user("weeks later")]
    body = json.dumps({"messages": messages}).encode()
    say(ferry, body, [*before[1][2], 201, 301, 9], [5])
    ferry.drainer = ferry.new_drainer()
    ferry.drain()
    with db.begin() as connection:
        parent, base = connection.execute(
            text("select parent_id, base_id from turns order by id desc limit 1")
        ).one()
        assert (parent, base) == (before[1][0], None)
        oldest = partitions.periods(connection)[0]
        assert oldest.start <= moment.date() < oldest.end
        assert retention.drop(connection, oldest)
    [row] = view(db, "messages, prompt_ids, turn_request_body(id)")
    assert (row[0], row[1].tolist(), bytes(row[2])) == (messages, [*before[1][2], 201, 301, 9], body)


def test_a_turn_of_a_wrong_clock_is_stored_and_stands_alone(ferry, db):
    far = START - 400 * DAY
    ferry.clock = far
    told = conversation(ferry, 2)
    ferry.clock = START
    ferry.drain()
    assert [row[0].tolist() for row in view(db, "prompt_ids")] == [ids for _, _, ids, _ in told]
    with db.connect() as connection:
        found = connection.execute(text("select tableoid::regclass::text, base_id from turns")).all()
    assert [tuple(row) for row in found] == [("turns_default", None)] * 2


def test_old_turns_go_with_everything_of_theirs(db):
    month = Period(date(1970, 2, 1), date(1970, 3, 1))
    with db.begin() as connection:
        partitions.make_ahead(connection, datetime(1970, 2, 15, tzinfo=UTC), "month")
        number = (partitions.first_id_of_day(date(1970, 2, 2)).int >> 80) + 1
        old = add_turn(connection, number, Stage.SCORED, score=1.0)
        young = add_turn(connection, number + int(60 * DAY * 1000), Stage.SCORED, score=1.0)
        assert retention.drop(connection, month)
        for table, column in (("turns", "id"), ("turn_states", "turn_id"), ("scores", "turn_id")):
            assert list(connection.scalars(text(f"select {column} from {table}"))) == [young]
        assert old != young
        assert partitions.periods(connection) == []


def test_a_batch_that_waits_keeps_its_turns(db):
    month = Period(date(1970, 2, 1), date(1970, 3, 1))
    with db.begin() as connection:
        partitions.make_ahead(connection, datetime(1970, 2, 15, tzinfo=UTC), "month")
        turn = add_turn(
            connection, (partitions.first_id_of_day(date(1970, 2, 2)).int >> 80) + 1, Stage.BATCHED
        )
        connection.execute(
            text(
                "insert into policies (name, scope, base_model) values ('p', 'global', 'm');"
                "insert into batches (policy_id, live_version, closed_because, settings, baseline)"
                " values (1, 0, 'full', '{}', '{}');"
            )
        )
        connection.execute(
            text(
                "insert into samples"
                " (turn_id, batch_id, position, reward, baseline, advantage, staleness, task)"
                " values (:turn, 1, 0, 1, 0, 1, 0, 'chat')"
            ),
            {"turn": turn},
        )
        assert not retention.drop(connection, month)
        assert connection.scalar(text("select count(*) from turns")) == 1


def test_the_drainer_drops_what_is_older_than_keep_days(ferry, db):
    conversation(ferry, 2)
    ferry.drain()
    ferry.clock += 100 * DAY
    storage = ferry.config.storage.model_copy(update={"keep_days": 30})
    ferry.config = ferry.config.model_copy(update={"storage": storage})
    ferry.drainer = ferry.new_drainer()
    ferry.drain()
    assert view(db, "id") == []
    with db.connect() as connection:
        assert connection.scalar(text("select count(*) from contents")) == 0


def test_a_table_that_is_in_use_is_left_for_a_minute(ferry, db, monkeypatch):
    monkeypatch.setattr(partitions, "LOCK_TIMEOUT", "20ms")
    conversation(ferry, 1)
    ferry.drain()
    ferry.clock += 40 * DAY
    with db.begin() as holder:
        holder.execute(text("lock table turns_default in access share mode"))
        ferry.drainer = ferry.new_drainer()
        ferry.drain()
        assert len(partitions.periods(holder)) == 1
    ferry.clock += 61
    ferry.drain()
    with db.connect() as connection:
        assert len(partitions.periods(connection)) == 2


def test_a_forgotten_tenants_text_is_nowhere(ferry, db):
    conversation(ferry, 3)
    ferry.say([user("of somebody else")], tenant="other")
    ferry.drain()
    with db.begin() as connection:
        assert forget.forget(connection, "default") == 3
    rows = view(db, "tenant, messages, prompt_ids, response_text, untrainable_reason, turn_request_body(id)")
    assert {tuple(row) for row in rows if row[0] == "default"} == {
        ("default", None, None, None, "forgotten", None)
    }
    assert rows[-1].messages == [user("of somebody else")]
    with db.connect() as connection:
        query = text("select stage, reason, count(*) from turn_states where tenant = 'default' group by 1, 2")
        assert [tuple(row) for row in connection.execute(query)] == [("dropped", "forgotten", 3)]
        assert "question" not in str(connection.execute(text("select * from turns")).all())
        assert connection.execute(text("select * from conversation where tenant = 'default'")).all() == []


def test_nothing_is_forgotten_of_a_batch_that_waits_for_its_step(db):
    with db.begin() as connection:
        add_turn(connection, 1, Stage.BATCHED)
        with pytest.raises(forget.TenantInUseError, match="try again"):
            forget.forget(connection, "t")


def test_a_lease_touches_no_index(db):
    """D14: taking and giving back a claim are updates within the page."""
    with db.begin() as connection:
        add_turn(connection, 1, Stage.SCORABLE)
        for _ in range(3):
            connection.execute(
                text("update turn_states set lease_owner = 'a', lease_until = now(), attempts = 1")
            )
        hot = connection.scalar(
            text("select pg_stat_get_xact_tuples_hot_updated('turn_states_default'::regclass)")
        )
    assert hot == 3


def test_a_whole_history_never_grows_in_one_field(ferry, db):
    """D15: what a turn's row and its own contents take does not grow with the conversation."""
    conversation(ferry, 30)
    ferry.drain()
    with db.connect() as connection:
        sizes = list(connection.scalars(text("select pg_column_size(t.*) from turns t order by id")))
        largest = connection.scalar(text("select max(length(body)) from contents"))
    assert max(sizes[1:]) - min(sizes[1:]) < 16
    assert largest < 200


def test_sequences_and_sums_do_not_end_at_two_billion(db):
    """D16: keys are 64 bits wide, and so are sums of token counts."""
    with db.begin() as connection:
        connection.execute(text("select setval(pg_get_serial_sequence('calls', 'id'), 2147483640)"))
        for _ in range(20):
            connection.execute(
                text(
                    "insert into calls (purpose, model, outcome, prompt_tokens, completion_tokens, seconds)"
                    " values ('judge', 'm', 'ok', 2000000000, 2000000000, 1)"
                )
            )
        assert connection.scalar(text("select prompt_tokens + completion_tokens from cost")) == 80_000_000_000
        narrow = connection.execute(
            text(
                "select table_name, column_name from information_schema.columns where table_schema = 'public'"
                " and is_identity = 'YES' and data_type <> 'bigint' and table_name <> 'policies'"
            )
        )
        assert narrow.all() == []


def test_ids_of_a_long_prompt_come_back_as_numpy_arrays(ferry, db):
    first = list(range(5000))
    say(ferry, b'{"messages":[{"role":"user","content":"1"}]}', first, [7])
    body = json.dumps({"messages": [user("1"), assistant(LONG), user("2")]}).encode()
    say(ferry, body, [*first, 7, 8], [9])
    ferry.drain()
    row = ferry.rows()[1]
    assert (row.base_tokens, row.prompt_tokens, row.prefix_ok) == (5001, 5002, True)
    assert (row.prompt_ids.dtype, row.prompt_ids.tolist()) == (np.int32, [*first, 7, 8])
