"""A migration of a filled table while others read and write it (D19)."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError, OperationalError

from dukou.store import database
from dukou.store.states import Stage
from tests.fakes.turns import add_turn

ROOT = Path(__file__).resolve().parents[2]
NEXT = """
import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "9999", {newest!r}, None, None


def upgrade():
    op.add_column("turns", sa.Column("flavour", sa.Text()))
    op.create_index("ix_flavour", "turn_states", ["tenant", "attempts"])


def downgrade():
    op.drop_column("turns", "flavour")
"""


def one_ahead(url: str, folder: Path) -> AlembicConfig:
    """Alembic with one migration more than there is."""
    settings = AlembicConfig(str(ROOT / "alembic.ini"))
    newest = ScriptDirectory.from_config(settings).get_current_head()
    (folder / "9999_next.py").write_text(NEXT.format(newest=newest))
    settings.set_main_option("path_separator", "os")
    settings.set_main_option(
        "version_locations", os.pathsep.join([str(ROOT / "dukou/migrations/versions"), str(folder)])
    )
    settings.attributes["url"] = url
    return settings


class Writer:
    """Today's code, writing turns."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stop = threading.Event()
        self._wrote = threading.Semaphore(0)
        self.errors: list[Exception] = []

    def run(self) -> None:
        number = 100_000
        while not self._stop.is_set():
            number += 1
            try:
                with self._engine.begin() as connection:
                    add_turn(connection, number, Stage.AWAITING_NEXT)
            except Exception as error:  # whatever it is, it belongs into the test's result
                self.errors.append(error)
                return
            self._wrote.release()

    def goes_on(self) -> bool:
        """Whether it wrote several turns from now on."""
        while self._wrote.acquire(blocking=False):
            pass
        return all(self._wrote.acquire(timeout=20) for _ in range(5))

    @contextmanager
    def at_work(self) -> Iterator["Writer"]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join()


def test_writers_go_on_while_a_migration_waits_fails_and_succeeds(
    db: Engine, database_url: str, tmp_path: Path
) -> None:
    with db.begin() as connection:
        for number in range(1, 501):
            add_turn(connection, number, Stage.TRAINED)
    ahead = one_ahead(database_url, tmp_path)
    with Writer(db).at_work() as writer:
        assert writer.goes_on()
        with db.connect() as reader:
            reader.execute(text("select count(*) from turns")).all()
            with pytest.raises(OperationalError, match="lock timeout"):
                command.upgrade(ahead, "head")
            assert writer.goes_on()
        command.upgrade(ahead, "head")
        assert writer.goes_on()  # today's code with tomorrow's schema
    assert writer.errors == []
    with db.connect() as connection:
        assert connection.scalar(text("select version_num from alembic_version")) == "9999"
        assert connection.scalar(text("select count(*) from turns where flavour is null")) > 500
    database.check(db)


def test_an_invalid_index_is_found_and_rebuilt(db: Engine, database_url: str) -> None:
    with db.begin() as connection:
        add_turn(connection, 1, Stage.TRAINED)
        add_turn(connection, 2, Stage.TRAINED)
    with db.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        broken = "create unique index concurrently ix_broken on turn_states_default (tenant)"
        with pytest.raises(IntegrityError):
            connection.execute(text(broken))
        assert database.invalid(connection) == ["public.ix_broken"]
        connection.execute(text("delete from turn_states where attempts = 0 and reason is null"))
    database.upgrade(database_url)
    with db.connect() as connection:
        assert database.invalid(connection) == []
        query = "select count(*) from pg_indexes where indexname = 'ix_broken'"
        assert connection.scalar(text(query)) == 1
