"""Migrations: up, down, in step with the code, and safe when several run at once."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.util import CommandError
from sqlalchemy import Engine, inspect, text

from dukou.store import database, partitions
from dukou.store.postgres_errors import PostgresUnreachableError, SchemaError, TableLockedError
from dukou.store.tables import metadata

ROOT = Path(__file__).resolve().parents[2]
VIEWS = {
    *("turn", "conversation", "trajectory", "progress", "funnel_stage", "funnel", "funnel_reason"),
    *("cost", "version", "demonstration", "preference"),
}


def alembic(url: str) -> AlembicConfig:
    settings = AlembicConfig(str(ROOT / "alembic.ini"))
    settings.attributes["url"] = url
    return settings


@pytest.fixture
def empty(empty_database_url: str) -> Iterator[Engine]:
    engine = database.engine_at(empty_database_url)
    yield engine
    engine.dispose()


def test_the_migrated_schema_is_the_one_of_the_code(database_url: str, db: Engine) -> None:
    command.check(alembic(database_url))
    defaults = {f"{table}_default" for table in partitions.TABLES}
    assert set(inspect(db).get_table_names()) == {*metadata.tables, *defaults, "alembic_version"}
    assert set(inspect(db).get_view_names()) == VIEWS


def test_check_notices_a_table_that_the_code_does_not_know(database_url: str, db: Engine) -> None:
    with db.begin() as connection:
        connection.execute(text("alter table turns drop column engine cascade"))
    with pytest.raises(CommandError, match="New upgrade operations detected"):
        command.check(alembic(database_url))


def test_down_to_nothing_and_up_again(database_url: str, db: Engine) -> None:
    command.downgrade(alembic(database_url), "base")
    assert inspect(db).get_table_names() == ["alembic_version"]
    assert inspect(db).get_view_names() == []
    database.upgrade(database_url)
    database.check(db)


def test_an_upgrade_of_the_newest_schema_changes_nothing(database_url: str, db: Engine) -> None:
    database.upgrade(database_url)
    database.check(db)


def test_several_migrators_at_once_are_one_after_the_other(empty_database_url: str, empty: Engine) -> None:
    # All must be at the lock before one goes on: without it, each would create the same tables.
    with empty.begin() as guard:
        guard.execute(text("select pg_advisory_xact_lock(:key)"), {"key": 0x44554B4F})
        migrators = [migrator(empty_database_url) for _ in range(3)]
        wait_for(empty, "select count(*) = 3 from pg_locks where locktype = 'advisory' and not granted")
    assert [(one.communicate()[0], one.returncode) for one in migrators] == [("", 0)] * 3
    database.check(empty)


def migrator(url: str) -> "subprocess.Popen[str]":
    program = f"from dukou.store import database; database.upgrade({url!r})"
    return subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(engine: Engine, condition: str) -> None:
    pause = threading.Event()
    for _ in range(500):
        with engine.connect() as connection:
            if connection.scalar(text(condition)):
                return
        pause.wait(0.02)
    pytest.fail(f"never came true: {condition}")


def test_a_migration_gives_up_soon_where_somebody_holds_a_table(database_url: str, db: Engine) -> None:
    with db.begin() as holder:
        holder.execute(text("lock table alembic_version in access exclusive mode"))
        with pytest.raises(TableLockedError, match="try again"):
            database.upgrade(database_url)


def test_alembic_from_the_shell_needs_no_argument(empty_database_url: str, empty: Engine) -> None:
    shell = {"PATH": os.environ["PATH"], "DATABASE_URL": empty_database_url}
    command_line = [sys.executable, "-m", "alembic", "upgrade", "head"]
    ran = subprocess.run(command_line, cwd=ROOT, env=shell, capture_output=True, text=True, check=False)
    assert (ran.returncode, "Running upgrade  -> 0001" in ran.stderr) == (0, True), ran.stderr
    database.check(empty)


def test_alembic_takes_another_url_from_its_x_argument(empty_database_url: str, empty: Engine) -> None:
    command_line = [sys.executable, "-m", "alembic", "-x", f"url={empty_database_url}", "upgrade", "head"]
    subprocess.run(command_line, cwd=ROOT, capture_output=True, check=True)
    database.check(empty)


def test_a_missing_schema_is_told_with_the_command(empty_database_url: str, empty: Engine) -> None:
    with pytest.raises(SchemaError, match="has no Dukou tables: run `alembic upgrade head`"):
        database.check(empty)


def test_an_old_schema_is_told_with_the_command(db: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    newest, *_ = known = database._revisions()
    monkeypatch.setattr(database, "_revisions", lambda: ["9999", *known])
    with pytest.raises(
        SchemaError, match=f"is at migration {newest}, this code needs 9999: run `alembic upgrade head`"
    ):
        database.check(db)


def test_a_newer_schema_is_fine(db: Engine) -> None:
    with db.begin() as connection:
        connection.execute(text("update alembic_version set version_num = '9999'"))
    database.check(db)


def test_a_server_that_does_not_answer_is_told(tmp_path: Path) -> None:
    engine = database.engine_at(f"postgresql+psycopg://u:secret@/d?host={tmp_path}")
    with pytest.raises(PostgresUnreachableError, match="cannot be used") as caught:
        database.check(engine)
    assert "secret" not in str(caught.value)
    with pytest.raises(PostgresUnreachableError):
        database.upgrade(f"postgresql+psycopg://u:secret@/d?host={tmp_path}")
    engine.dispose()
