"""`python -m learner` as a process, from before anything is there until it is told to stop."""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import func, select

from dukou.settings.load import from_mapping
from dukou.store import database
from dukou.store.policies import get_or_create
from dukou.store.states import Stage
from dukou.store.tables import policies, samples, turn_states
from learner.stages import PostgresStages
from tests.fakes import tiny_llama
from tests.fakes.turns import add_turn

ROOT = Path(__file__).parents[2]
NOWHERE = "postgresql://me:secret@127.0.0.1:1/x"


def environment(url: str, state: Path, **settings: str) -> dict[str, str]:
    names = {f"DUKOU_{name.upper()}": value for name, value in settings.items()}
    return {
        **os.environ,
        "DATABASE_URL": url,
        "DUKOU_STATE_DIR": str(state),
        "DUKOU_TRAINER_DRY_RUN": "true",
        **names,
    }


def learner(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "learner", *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)


@contextmanager
def running(env: dict[str, str]):
    command = [sys.executable, "-m", "learner"]
    with subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(120, process.kill)  # a line that never comes ends the log alone
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            process.kill()


def said(process: subprocess.Popen[str], words: str) -> str:
    """Reads the log up to the line with these words."""
    log = []
    for line in process.stderr:
        log.append(line)
        if words in line:
            return line
    return pytest.fail(f"the log ended without {words!r}: {''.join(log)}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_starts_without_postgres_and_stops_when_told(tmp_path, number):
    with running(environment(NOWHERE, tmp_path)) as process:
        assert "database.url (DATABASE_URL)" in said(process, "the environment sets: ")
        line = said(process, "waiting for Postgres because ")
        assert "secret" not in line
        process.send_signal(number)
        said(process, "stopped")
        assert process.wait(timeout=30) == 0


def test_it_starts_before_the_tables_and_goes_on_when_they_come(empty_database_url, tmp_path):
    env = environment(empty_database_url, tmp_path)
    with running(env) as process:
        said(process, "waiting for the tables because ")
        database.upgrade(empty_database_url)
        said(process, "submission resumed")
        line = said(process, "waiting for samples batch_size=16 current=0 oldest=none because ")
        assert "drainer has never reported" in line
        process.terminate()
        said(process, "stopped")


def test_status_answers_while_the_learner_and_the_gateway_are_off(database_url, tmp_path):
    done = learner(environment(database_url, tmp_path), "status", "--json")
    assert (done.returncode, json.loads(done.stdout)["kind"]) == (0, "learner_off")


def test_status_answers_without_postgres(tmp_path):
    done = learner(environment(NOWHERE, tmp_path), "status")
    assert done.returncode == 0
    environment_sets, learner_waits = done.stdout.split("\n\n")
    assert "database.url (DATABASE_URL)" in environment_sets
    assert learner_waits.startswith("The learner waits for Postgres because it cannot be reached")


def test_once_scores_what_can_be_scored_and_ends(db, database_url, tmp_path):
    with db.begin() as connection:
        add_turn(connection, 1, Stage.SCORABLE, next_number=2, said="add two and two")
        add_turn(connection, 2, Stage.AWAITING_NEXT, said="thanks, that is right!", parent_messages=0)
    done = learner(environment(database_url, tmp_path, judge_kind="rules"), "score", "--once")
    with db.connect() as connection:
        stages = connection.scalars(select(turn_states.c.stage).order_by(turn_states.c.turn_id)).all()
    assert (done.returncode, stages) == (0, ["scored", "awaiting_next"])


def test_once_fails_with_a_sentence_where_there_is_nothing_to_work_on(tmp_path):
    done = learner(environment(NOWHERE, tmp_path), "publish", "--once")
    assert done.returncode == 1
    assert "waiting for Postgres because" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_running_learner_reports_that_it_is_alive(database_url, tmp_path):
    env = environment(database_url, tmp_path)
    with running(env) as process:
        said(process, "waiting for samples")
        while not (report := json.loads(learner(env, "status", "--json").stdout))["processes"]:
            assert process.poll() is None
        process.terminate()
        said(process, "stopped")
        process.wait()
    after = json.loads(learner(env, "status", "--json").stdout)
    assert report["kind"] == "no_gateway"
    assert [(beat["name"], beat["alive"]) for beat in report["processes"]] == [("learner", True)]
    assert (after["kind"], after["processes"][0]["alive"]) == ("learner_off", False)


def test_the_stages_find_an_open_batch_and_come_back_after_a_lost_connection(db, database_url, tmp_path):
    with db.begin() as connection:
        get_or_create(connection, "default", "global", str(tmp_path))
    config = from_mapping({"database": {"url": database_url}, "trainer": {"dry_run": True}})
    stages = PostgresStages(config)
    stages.connect()
    assert stages.open_batch() is None
    stages.mark_disconnected()
    stages.connect()
    assert stages.batch().because == "no scored turn is left"
    assert stages.publish() is None
    stages.close()


@pytest.fixture
def four_samples(db, tmp_path):
    """Four scored turns of a tiny policy: what a batch of four needs."""
    base = tiny_llama.save(tmp_path / "base")
    with db.begin() as connection:
        policy = get_or_create(connection, "default", "global", str(base))
        for number in range(1, 5):
            reward = {"policy_id": policy.id, "score": float(number % 2)}
            add_turn(connection, number, Stage.SCORED, next_number=number + 10, **reward)


def stages(db) -> dict[str, int]:
    query = select(turn_states.c.stage, func.count()).group_by(turn_states.c.stage)
    with db.connect() as connection:
        return {row[0]: row[1] for row in connection.execute(query)}


def training(url: str, state: Path) -> dict[str, str]:
    return environment(url, state, trainer_dry_run="false", batch_rollout_batch_size="4", judge_kind="rules")


def test_a_full_batch_becomes_the_live_version(db, database_url, tmp_path, four_samples):
    with running(training(database_url, tmp_path)) as process:
        said(process, "trained step=1 batch=1 version=1 seconds=")
        said(process, "published version=1")
        said(process, "waiting for samples batch_size=4 current=0 oldest=none because ")
        process.terminate()
        assert process.wait(timeout=30) == 0
    with db.connect() as connection:
        assert connection.scalar(select(policies.c.live_version)) == 1
    assert stages(db) == {"trained": 4}


def test_a_step_that_a_stop_interrupts_is_trained_once_at_the_next_start(
    db, database_url, tmp_path, four_samples
):
    env = training(database_url, tmp_path)
    with running(env) as process:
        said(process, "submission resumed")
        process.terminate()
        assert process.wait(timeout=30) == 0
    with running(env) as process:
        said(process, "waiting for samples")
        process.terminate()
        assert process.wait(timeout=30) == 0
    with db.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(samples)) == 4
        assert connection.scalar(select(policies.c.live_version)) == 1
    assert stages(db) == {"trained": 4}


def test_the_live_pointer_moves_back_when_told(db, database_url, tmp_path, four_samples):
    env = training(database_url, tmp_path)
    assert learner(env, "run", "--once").returncode == 0
    back = learner(env, "publish", "--version", "0")
    unknown = learner(env, "publish", "--version", "9")
    again = learner(env, "run", "--once")
    with db.connect() as connection:
        live = connection.scalar(select(policies.c.live_version))
    assert (back.returncode, unknown.returncode, again.returncode, live) == (0, 1, 0, 0)
    assert "has no version 9" in unknown.stderr
