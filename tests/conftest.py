"""A Postgres of the tests' own, started once; a test that asks gets a fresh copy of the migrated schema."""

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from hypothesis import settings
from psycopg import sql
from sqlalchemy import Engine, make_url

from dukou.settings.environment import stand_alone
from dukou.store import database, embedded

# The tests have settings and states of their own, and so has every process that they start.
stand_alone()
# The tests' matrices are small: on several threads that wait for each other they are twenty times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples in every run, so that a failure is the change's. `make fuzz` looks for new ones.
settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.register_profile("fresh", max_examples=1000, deadline=None, database=None, print_blob=True)
settings.load_profile("fixed")

_TEMPLATE = "dukou_template"
_numbers = itertools.count(1)
# A test's database dies with it: nothing here has to survive a power cut.
_LOCAL_CONF = "fsync = off\nfull_page_writes = off\nsynchronous_commit = off\n"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a server that is started for this session, in a folder of its own."""
    state = Path(tempfile.mkdtemp(prefix="dukou-tests-"))
    (state / "postgres").mkdir()
    (state / "postgres" / "local.conf").write_text(_LOCAL_CONF)
    try:
        yield embedded.ensure_running(state)
    finally:
        embedded.stop(state)
        shutil.rmtree(state)


@pytest.fixture(scope="session")
def template(postgres: str) -> str:
    """The name of a database with every migration applied; databases are cloned from it."""
    with _admin(postgres) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(_TEMPLATE)))
    database.upgrade(_named(postgres, _TEMPLATE))
    return _TEMPLATE


@pytest.fixture
def database_url(postgres: str, template: str) -> Iterator[str]:
    """A fresh, migrated, empty database for one test."""
    yield from _fresh(postgres, template)


@pytest.fixture
def empty_database_url(postgres: str) -> Iterator[str]:
    """A fresh database without any table."""
    yield from _fresh(postgres, "template1")


@pytest.fixture
def db(database_url: str) -> Iterator[Engine]:
    """An engine of Dukou's own for `database_url`."""
    engine = database.engine_at(database_url)
    yield engine
    engine.dispose()


def _fresh(postgres: str, template: str) -> Iterator[str]:
    name = f"test_{next(_numbers)}"
    clone = sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template))
    with _admin(postgres) as connection:
        connection.execute(clone)
    yield _named(postgres, name)
    with _admin(postgres) as connection:
        connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def _admin(url: str) -> psycopg.Connection:
    parts = make_url(url)
    return psycopg.connect(
        host=str(parts.query["host"]), user=parts.username, dbname="postgres", autocommit=True
    )


def _named(url: str, name: str) -> str:
    return make_url(url).set(database=name).render_as_string(hide_password=False)
