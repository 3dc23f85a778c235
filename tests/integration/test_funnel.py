"""The funnel's queries on a real Postgres."""

import uuid

import pytest
from sqlalchemy import insert, text

from dukou.store import database, processes
from dukou.store.funnel import RECENT, Count, OpenBatch, snapshot, totals
from dukou.store.policies import get_or_create
from dukou.store.processes import DrainerDetail, Heartbeat, LearnerDetail
from dukou.store.states import Stage
from dukou.store.tables import batches, engines, publications, samples, set_aside, steps, versions
from learner.status.facts import StatusFacts
from learner.status.funnel import funnel
from learner.status.read import read_from
from learner.status.sentence import explain
from tests.fakes.facts import SETTINGS
from tests.fakes.turns import add_turn


@pytest.fixture
def connection(db):
    with db.begin() as connection:
        yield connection


@pytest.fixture
def policy_id(connection):
    return get_or_create(connection, "default", "global", "/models/base").id


def add_batch(connection, policy_id, turn_ids, status="closed"):
    row = {
        "policy_id": policy_id,
        "live_version": 0,
        "closed_because": "full",
        "settings": {},
        "baseline": {},
    }
    batch_id = connection.scalar(insert(batches).values(**row, status=status).returning(batches.c.id))
    for position, turn in enumerate(turn_ids):
        numbers = {"reward": 1.0, "baseline": 0.0, "advantage": 1.0, "staleness": 0, "task": "chat"}
        connection.execute(
            insert(samples).values(turn_id=turn, batch_id=batch_id, position=position, **numbers)
        )
    return batch_id


def add_step(connection, policy_id, batch_id, version):
    at = {"policy_id": policy_id, "version": version}
    made = {"parent": 0, "batch_id": batch_id, "path": "/v", "form": "full", "status": "written"}
    connection.execute(insert(versions).values(**at, **made))
    row = {"batch_id": batch_id, "number": version, "checkpoint": "/c", "metrics": {}, "seconds": 1.0}
    connection.execute(insert(steps).values(**at, **row))


def publication(connection, policy_id, version, status, error=None):
    row = {"policy_id": policy_id, "version": version, "engine": "http://e", "status": status, "seconds": 1.0}
    connection.execute(insert(publications).values(**row, error=error))


def whole_history(connection, policy_id):
    """Turns at every step of the funnel, and lost before every step."""
    add_turn(connection, 1, Stage.DROPPED, "side")
    add_turn(connection, 2, Stage.DROPPED, "sampling_greedy")
    add_turn(connection, 3, Stage.DROPPED, "no_next_state")
    add_turn(connection, 4, Stage.AWAITING_NEXT)
    add_turn(connection, 5, Stage.SCORABLE, next_number=6)
    add_turn(connection, 6, Stage.DROPPED, "abstained", next_number=7)
    add_turn(connection, 7, Stage.DROPPED, "stale", next_number=8, score=1.0)
    add_turn(connection, 8, Stage.SCORED, next_number=9, score=1.0)
    batched = [add_turn(connection, n, Stage.BATCHED, next_number=n + 1, score=1.0) for n in (9, 10)]
    trained = [add_turn(connection, n, Stage.TRAINED, next_number=n + 1, score=1.0) for n in (11, 12, 13)]
    unpublished = [add_turn(connection, 14, Stage.TRAINED, next_number=15, score=0.0)]
    skipped = [add_turn(connection, 15, Stage.DROPPED, "not_finite", next_number=16, score=0.0)]
    add_step(connection, policy_id, add_batch(connection, policy_id, trained, "trained"), 1)
    add_step(connection, policy_id, add_batch(connection, policy_id, unpublished, "trained"), 2)
    add_batch(connection, policy_id, skipped, "skipped")
    publication(connection, policy_id, 1, "loaded")
    connection.execute(insert(set_aside).values(id=uuid.uuid4(), error="numeric overflow", record=b""))
    return add_batch(connection, policy_id, batched)


def test_status_and_the_sql_view_tell_the_same(connection, policy_id):
    whole_history(connection, policy_id)
    processes.beat(connection, Heartbeat("drainer", "draining", detail=DrainerDetail(0, 0, 0)))
    ours = [(step.name, step.turns) for step in funnel(totals(connection), snapshot(connection, "default"))]
    view = connection.execute(text("select stage, turns from funnel order by position"))
    assert ours == [tuple(row) for row in view]


def test_the_snapshot_has_what_waits_and_since_when(connection, policy_id):
    batch_id = whole_history(connection, policy_id)
    found = snapshot(connection, "default")
    stages = (Stage.AWAITING_NEXT, Stage.SCORABLE, Stage.SCORED, Stage.BATCHED)
    assert [found.waiting(stage) for stage in stages] == [1, 1, 1, 2]
    assert found.oldest(Stage.SCORED) == 0.0
    assert found.open_batch == OpenBatch(batch_id, 2, "full", 0.0)
    assert (found.published, found.set_aside, found.live_version) == (3, 1, 0)
    assert found.last_turn_age is not None


def test_the_recent_window_is_the_newest_turns(connection):
    add_turn(connection, 1, Stage.TRAINED)
    for number in range(2, RECENT + 2):
        add_turn(connection, number, Stage.DROPPED, "side")
    assert snapshot(connection, "default").recent == (Count(Stage.DROPPED, "side", RECENT),)


def test_an_empty_database_is_no_traffic_and_no_numbers(connection):
    found = snapshot(connection, "default")
    assert totals(connection) == ()
    assert (found.published, found.live_version, found.last_turn_age, found.undrained) == (
        None,
        None,
        None,
        None,
    )
    processes.beat(connection, Heartbeat("learner", "waiting", detail=LearnerDetail(trains=True)))
    processes.beat(connection, Heartbeat("drainer", "draining"))
    assert explain(StatusFacts(SETTINGS, snapshot(connection, "default"))).kind == "no_traffic"


def test_a_failed_publication_counts_until_it_succeeds(connection, policy_id):
    publication(connection, policy_id, 0, "failed", "400: shapes")
    assert snapshot(connection, "default").publish_error == "400: shapes"
    publication(connection, policy_id, 0, "loaded")
    assert snapshot(connection, "default").publish_error is None


def test_an_engine_of_unknown_version_is_unknown(connection):
    connection.execute(insert(engines).values(url="http://e", state="starting"))
    assert snapshot(connection, "default").engines[0].version is None


def test_status_without_tables_says_how_to_make_them(empty_database_url):
    engine = database.engine_at(empty_database_url)
    report = read_from(engine, "default", SETTINGS)
    engine.dispose()
    assert explain(report.facts).kind == "no_tables"
    assert "alembic upgrade head" in report.text()


def test_status_without_a_server_says_so_and_never_the_password():
    engine = database.engine_at("postgresql+psycopg://me:secret@127.0.0.1:1/x")
    text_ = read_from(engine, "default", SETTINGS).text()
    engine.dispose()
    assert text_.startswith("The learner waits for Postgres")
    assert "secret" not in text_


def test_status_works_when_everything_is_off(db):
    report = read_from(db, "default", SETTINGS)
    assert explain(report.facts).kind == "learner_off"
    assert "never reported" in report.text()
