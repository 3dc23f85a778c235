"""The views give what docs/sql.md promises."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
from sqlalchemy import Connection, Engine, Table, insert, text, update

from dukou.store import tables
from dukou.store.states import Stage
from tests.fakes.rows import insert_turn
from tests.fakes.turns import add_turn

ROOT = Path(__file__).resolve().parents[2]
START = datetime(2026, 5, 1, 12, tzinfo=UTC)
TURN_COLUMNS = [
    "id",
    "tenant",
    "session_id",
    "segment_id",
    "parent_id",
    "ordinal",
    "kind",
    "kind_reason",
    "session_source",
    "endpoint",
    "stream",
    "model",
    "engine",
    "status",
    "error",
    "http_status",
    "messages",
    "tools",
    "sampling",
    "response_text",
    "reasoning_text",
    "tool_calls",
    "finish_reason",
    "choice_index",
    "usage",
    "prompt_ids",
    "response_ids",
    "response_logprobs",
    "capture",
    "sampling_class",
    "trainable",
    "untrainable_reason",
    "policy",
    "policy_version_min",
    "policy_version_max",
    "client_request_id",
    "started_at",
    "first_token_at",
    "finished_at",
    "prefix_ok",
    "stopped_by",
    "temperature",
    "sampling_defaults",
    "trained_tokens",
]


@pytest.fixture
def connection(db: Engine):
    with db.begin() as open_connection:
        yield open_connection


def uuid(n: int) -> UUID:
    return UUID(int=n)


def add(connection: Connection, table: Table, **row: object) -> None:
    connection.execute(insert(table), row)


def policy(connection: Connection) -> None:
    add(connection, tables.policies, name="default", scope="global", base_model="/models/base")
    add(
        connection,
        tables.versions,
        policy_id=1,
        version=0,
        path="/models/base",
        form="full",
        status="retired",
    )


def turn(
    connection: Connection, n: int, stage: str = "awaiting_next", reason: str | None = None, **row: object
):
    """Turn `n` of session s, `n` minutes after the start, and its state."""
    given: dict[str, object] = {
        "id": uuid(n),
        "request_id": uuid(n),
        "tenant": "acme",
        "session_id": "s",
        "segment_id": uuid(1),
        "ordinal": 0,
        "kind": "main",
        "session_source": "new",
        "endpoint": "chat",
        "stream": True,
        "status": "ok",
        "capture": "sampled",
        "trainable": True,
        "started_at": START + timedelta(minutes=n),
    }
    insert_turn(connection, **{**given, **row})
    add(connection, tables.turn_states, turn_id=given["id"], tenant="acme", stage=stage, reason=reason)


def rows(connection: Connection, query: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in connection.execute(text(query))]


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def test_turn_has_the_promised_columns_in_their_order(connection: Connection) -> None:
    assert list(connection.execute(text("select * from turn")).keys()) == TURN_COLUMNS


def test_turn_shows_what_was_stored_and_null_for_what_is_missing(connection: Connection) -> None:
    policy(connection)
    messages = [{"role": "user", "content": "z", "a": 1.0}]
    turn(
        connection,
        1,
        messages=messages,
        policy_id=1,
        response_ids=[5, 6],
        response_logprobs=np.array([-0.5, np.nan]),
        policy_version_min=0,
        policy_version_max=1,
    )
    row = connection.execute(text("select * from turn")).mappings().one()
    assert json.dumps(row["messages"]) == json.dumps(messages)
    assert (row["policy"], row["policy_version_min"], row["policy_version_max"]) == ("default", 0, 1)
    assert row["response_ids"].tolist() == [5, 6]
    assert np.array_equal(row["response_logprobs"], np.float32([-0.5, np.nan]), equal_nan=True)
    missing = [name for name in TURN_COLUMNS if row[name] is None]
    assert {"error", "tools", "usage", "prompt_ids", "first_token_at"} <= set(missing)
    assert rows(connection, "select count(*) from turn where tools is null and usage is null") == [(1,)]


def test_conversation_tells_each_message_once(connection: Connection) -> None:
    first = [user("q1")]
    turn(connection, 1, messages=first, response_text="a1", prompt_hash=b"1")
    second = [*first, assistant("a1"), user("q2")]
    turn(
        connection,
        2,
        messages=second,
        parent_messages=2,
        parent_id=uuid(1),
        response_text="a2",
        prompt_hash=b"2",
    )
    turn(
        connection,
        3,
        messages=second,
        parent_messages=2,
        parent_id=uuid(1),
        response_text="b2",
        prompt_hash=b"2",
    )
    turn(
        connection,
        4,
        kind="side",
        messages=[user("title?")],
        response_text="Title",
        stage="dropped",
        reason="side",
    )
    assert rows(connection, "select position, part, role, content from conversation order by position") == [
        (1, "request", "user", "q1"),
        (2, "answer", "assistant", "a1"),
        (3, "request", "user", "q2"),
        (4, "answer", "assistant", "a2"),
        (5, "answer", "assistant", "b2"),
    ]


def test_conversation_shows_every_choice_and_its_question_once(connection: Connection) -> None:
    turn(connection, 1, messages=[user("q")], response_text="a", prompt_hash=b"1")
    turn(
        connection,
        2,
        request_id=uuid(1),
        choice_index=1,
        started_at=START + timedelta(minutes=1),
        messages=[user("q")],
        response_text="b",
        prompt_hash=b"1",
    )
    assert rows(connection, "select content from conversation order by position") == [("q",), ("a",), ("b",)]


def test_conversation_bears_messages_that_are_no_list_and_content_that_is_no_text(
    connection: Connection,
) -> None:
    call = [{"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}]
    turn(connection, 1, messages={"not": "a list"}, tool_calls=call)
    turn(connection, 2, messages=["bare", user([{"type": "text", "text": "x"}])], status="interrupted")
    turn(connection, 3, messages=None, status="rejected")
    parts = [{"type": "text", "text": "x"}]
    assert rows(connection, "select role, content, message from conversation order by position") == [
        ("assistant", None, {"role": "assistant", "tool_calls": call}),
        (None, "bare", "bare"),
        ("user", '[{"type": "text", "text": "x"}]', {"role": "user", "content": parts}),
    ]


def test_trajectory_shows_the_newest_score_and_feedback_before_it(connection: Connection) -> None:
    policy(connection)
    turn(connection, 1, "scored", policy_id=1, prompt_ids=[1, 2, 3], response_ids=[4], ordinal=0)
    turn(connection, 2, ordinal=1)
    for judge, reason, value, minute in (
        ("llm", "majority", 1, 1),
        ("rules", "tie", 0, 2),
        ("person", "feedback", -1, 0),
    ):
        add(
            connection,
            tables.scores,
            turn_id=uuid(1),
            judge=judge,
            rubric="r@1",
            value=value,
            reason=reason,
            created_at=START + timedelta(minutes=minute),
        )
    query = """select ordinal, score, judge, prompt_tokens, response_tokens, advantage
               from trajectory order by ordinal"""
    assert rows(connection, query) == [(0, -1.0, "person", 3, 1, None), (1, None, None, None, None, None)]
    connection.execute(text("delete from scores where judge = 'person'"))
    assert rows(connection, query)[0][:3] == (0, 0.0, "rules")


def train(connection: Connection, n: int, version: int) -> None:
    """Turn `n` is the only sample of the batch that made `version`."""
    add(
        connection,
        tables.batches,
        policy_id=1,
        live_version=version - 1,
        closed_because="full",
        settings={},
        baseline={},
    )
    add(
        connection,
        tables.samples,
        turn_id=uuid(n),
        batch_id=version,
        position=0,
        reward=1,
        baseline=0,
        advantage=1,
        staleness=0,
        task="chat",
    )
    add(
        connection,
        tables.versions,
        policy_id=1,
        version=version,
        parent=version - 1,
        batch_id=version,
        path=f"/v/{version}",
        form="full",
        status="live",
    )
    add(
        connection,
        tables.steps,
        batch_id=version,
        policy_id=1,
        number=version,
        version=version,
        checkpoint="c",
        metrics={},
        seconds=1,
    )


def publish(connection: Connection, version: int, engine: str, status: str) -> None:
    add(
        connection, tables.publications, policy_id=1, version=version, engine=engine, status=status, seconds=1
    )


def funnel(connection: Connection) -> dict[str, int]:
    return dict(rows(connection, "select stage, turns from funnel order by position"))


def test_an_empty_funnel_has_every_stage_at_zero(connection: Connection) -> None:
    assert list(funnel(connection).items()) == [
        (stage, 0)
        for stage in (
            *("seen", "recorded", "main", "next state", "scored", "counted"),
            *("in a batch", "trained", "published"),
        )
    ]
    assert rows(connection, "select * from funnel_reason") == []


def test_the_funnel_narrows_stage_by_stage_and_each_loss_has_its_reason(connection: Connection) -> None:
    policy(connection)
    add(connection, tables.set_aside, id=uuid(90), error="too wide", record=b"")
    turn(connection, 1, "dropped", "side", kind="side")
    turn(connection, 2, "dropped", "no_ids")
    turn(connection, 3)
    turn(connection, 4, "scorable")
    turn(connection, 5, "dropped", "no_quorum")
    connection.execute(
        update(tables.turn_states).where(tables.turn_states.c.turn_id == uuid(5)).values(next_turn_id=uuid(6))
    )
    turn(connection, 6, "dropped", "stale")
    add(connection, tables.scores, turn_id=uuid(6), judge="j", rubric="r", value=0)
    turn(connection, 7, "scored")
    for n, version in ((8, 1), (9, 2)):
        turn(connection, n, "trained")
        train(connection, n, version)
    turn(connection, 10, "batched")
    add(
        connection,
        tables.batches,
        policy_id=1,
        live_version=2,
        closed_because="full",
        settings={},
        baseline={},
    )
    add(
        connection,
        tables.samples,
        turn_id=uuid(10),
        batch_id=3,
        position=0,
        reward=1,
        baseline=0,
        advantage=1,
        staleness=0,
        task="chat",
    )
    publish(connection, 1, "http://a", "loaded")
    publish(connection, 2, "http://a", "failed")
    assert funnel(connection) == {
        "seen": 11,
        "recorded": 10,
        "main": 9,
        "next state": 7,
        "scored": 5,
        "counted": 4,
        "in a batch": 3,
        "trained": 2,
        "published": 1,
    }
    assert rows(connection, "select * from funnel_reason") == [
        ("seen", "set_aside", 1),
        ("recorded", "side", 1),
        ("main", "no_ids", 1),
        ("main", None, 1),
        ("next state", "no_quorum", 1),
        ("next state", None, 1),
        ("scored", "stale", 1),
        ("counted", None, 1),
        ("in a batch", None, 1),
    ]


def test_a_later_version_on_an_engine_has_published_the_earlier_ones(connection: Connection) -> None:
    policy(connection)
    for n in (1, 2):
        turn(connection, n, "trained")
        train(connection, n, n)
    publish(connection, 2, "http://a", "loaded")
    assert funnel(connection)["published"] == 2


def test_cost_counts_unknown_prices_apart_and_never_as_zero(connection: Connection) -> None:
    def call(model: str, cost: float | None, tokens: int | None, hours: int = 0) -> None:
        add(
            connection,
            tables.calls,
            purpose="judge",
            model=model,
            outcome="ok",
            prompt_tokens=tokens,
            completion_tokens=None,
            cost_usd=cost,
            seconds=1,
            created_at=START + timedelta(hours=hours),
        )

    call("priced", 0.5, 2_000_000_000)
    call("priced", 0.25, 2_000_000_000)
    call("priced", None, 10)
    call("unpriced", None, None)
    call("unpriced", None, None, hours=12)
    assert rows(connection, "select * from cost order by model, day") == [
        ("judge", "priced", START.date(), 3, 4_000_000_010, None, 0.75, 1),
        ("judge", "unpriced", START.date(), 1, None, None, None, 1),
        ("judge", "unpriced", START.date() + timedelta(days=1), 1, None, None, None, 1),
    ]


def test_version_tells_what_made_it_where_it_is_and_whom_it_served(connection: Connection) -> None:
    policy(connection)
    turn(connection, 1, "trained", policy_id=1, policy_version_min=0, policy_version_max=0)
    train(connection, 1, 1)
    turn(connection, 2, policy_id=1, policy_version_min=0, policy_version_max=1)
    turn(connection, 3, policy_id=1, policy_version_min=1, policy_version_max=1)
    turn(connection, 4, policy_id=1, trainable=False, untrainable_reason="version_unknown")
    for engine, status in (
        ("http://b", "loaded"),
        ("http://a", "failed"),
        ("http://a", "loaded"),
        ("http://b", "loaded"),
    ):
        publish(connection, 1, engine, status)
    query = """select policy, version, parent, status, samples, published_engines, first_served_turn,
                      last_served_turn, turns_served from version order by version"""
    assert rows(connection, query) == [
        ("default", 0, None, "retired", 0, [], uuid(1), uuid(2), 2),
        ("default", 1, 0, "live", 1, ["http://a", "http://b"], uuid(2), uuid(3), 2),
    ]


def test_a_persons_query_for_one_session_reads_that_session_only(connection: Connection) -> None:
    for number in range(1, 101):  # of an empty table every index is as good
        add_turn(connection, number, Stage.TRAINED)
    connection.execute(text("analyze turns"))
    connection.execute(text("set local enable_seqscan = off"))
    for view in ("turn", "conversation", "trajectory"):
        plan = rows(connection, f"explain select * from {view} where tenant = 't' and session_id = 's7'")
        assert any("tenant_session_id_started_at_idx" in str(line) for (line,) in plan), view


def cookbook() -> list[str]:
    return re.findall(r"```sql\n(.*?)```", (ROOT / "docs" / "sql.md").read_text(), re.DOTALL)


def test_every_query_of_the_cookbook_runs(db: Engine) -> None:
    queries = [query for query in cookbook() if not query.startswith("alter role")]
    assert len(queries) >= 10
    with db.connect() as connection:
        for query in queries:
            connection.exec_driver_sql(query)
