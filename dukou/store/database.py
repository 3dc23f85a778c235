"""The way into Postgres: its URL, an engine for it, its schema, and what is wrong with it in a sentence.

Everything works behind pgbouncer in transaction mode: no prepared statement, no SET that outlives its
transaction, no LISTEN, no session lock. `idle_in_transaction_session_timeout` therefore is a setting of the
server (the embedded one has 5 minutes) or of the role: docs/sql.md has the ALTER ROLE.

Indexes that a broken-off `create index concurrently` left: written to at every insert, and never used.
"""

import json
import logging
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, OperationalError

from dukou.settings.model import Config
from dukou.store import binary
from dukou.store.postgres_errors import (
    PostgresUnreachableError,
    SchemaError,
    TableLockedError,
    UnusableUrlError,
    place_of,
    unreachable_line,
)

_MIGRATIONS = Path(__file__).resolve().parents[1] / "migrations"
_DRIVER = "postgresql+psycopg"
_CONNECT_SECONDS = 5

# The migration that the schema is at.
_REVISION = text("select version_num from alembic_version")

# It tells of every plugin of its own that it loads, at each start of a process that looks at the schema.
logging.getLogger("alembic.runtime.plugins").setLevel(logging.WARNING)


class JsonText(bytes):
    """JSON that is serialised already, in UTF-8: bound to a JSON column as it is, without another pass."""


def url(config: Config) -> str:
    """The database's URL, with the psycopg driver; where none is set, the embedded Postgres is started.

    Raises:
        UnusableUrlError: it is no Postgres URL.
        EmbeddedError: there is no URL, and the embedded Postgres cannot run here.
    """
    given = config.database.url.get_secret_value()
    if given:
        return normalised(given)
    from dukou.store.embedded import ensure_running

    return ensure_running(config.state_dir)


def normalised(given: str) -> str:
    """`postgres://…` and its kin as `postgresql+psycopg://…`. Raises UnusableUrlError."""
    try:
        parsed = make_url(given.strip())
    except (ArgumentError, ValueError):
        raise UnusableUrlError(
            "database.url (DATABASE_URL) does not parse: write postgresql://user:password@host:5432/name, "
            "with special characters of the password percent-encoded"
        ) from None  # the original repeats the URL, and so the password
    if parsed.get_backend_name() not in ("postgresql", "postgres"):
        raise UnusableUrlError(
            f"database.url (DATABASE_URL) is of {parsed.get_backend_name()}; Dukou needs Postgres"
        )
    return parsed.set(drivername=_DRIVER).render_as_string(hide_password=False)


def engine(config: Config) -> Engine:
    """A pool of `database.pool_size` connections; connects at first use. Raises as `url` does."""
    return engine_at(url(config), pool_size=config.database.pool_size, max_overflow=0)


def engine_at(where: str, **options: Any) -> Engine:
    """An engine for a URL that `url` or `normalised` gave; `options` are create_engine's."""
    made = create_engine(
        where,
        pool_pre_ping=True,
        json_serializer=_to_json,
        hide_parameters=True,  # an error must not repeat what users said
        connect_args={
            "prepare_threshold": None,
            "application_name": "dukou",
            "connect_timeout": _CONNECT_SECONDS,
        },
        **options,
    )
    event.listen(made, "connect", lambda connection, _: binary.register(connection))
    return made


def check(connected: Engine) -> None:
    """Raises PostgresUnreachableError or SchemaError, in words for a person. A newer schema is fine."""
    known = _revisions()
    try:
        with connected.connect() as connection:
            exists = inspect(connection).has_table("alembic_version")
            found = connection.scalar(_REVISION) if exists else None
    except OperationalError as error:
        raise PostgresUnreachableError(unreachable_line(connected.url, error)) from None
    if found is None:
        raise SchemaError(f"{place_of(connected.url)} has no Dukou tables: run `alembic upgrade head`")
    if found in known[1:]:
        raise SchemaError(
            f"{place_of(connected.url)} is at migration {found}, this code needs {known[0]}: "
            "run `alembic upgrade head`"
        )


def upgrade(where: str) -> None:
    """Brings the schema to the newest migration; several processes may call at once, one migrates.

    Raises:
        PostgresUnreachableError: no server answers.
        TableLockedError: a long transaction of somebody else holds a table.
    """
    from alembic import command

    settings = _alembic()
    settings.attributes["url"] = where
    try:
        command.upgrade(settings, "head")
    except OperationalError as error:
        if isinstance(error.orig, psycopg.errors.LockNotAvailable):
            raise TableLockedError(
                "a long transaction holds a table that a migration changes: nothing was changed, try again"
            ) from error
        raise PostgresUnreachableError(unreachable_line(make_url(where), error)) from None


def _revisions() -> list[str]:
    """The migrations of this code, newest first."""
    from alembic.script import ScriptDirectory

    return [script.revision for script in ScriptDirectory.from_config(_alembic()).walk_revisions()]


def _alembic() -> Any:
    from alembic.config import Config as AlembicConfig

    settings = AlembicConfig()
    settings.set_main_option("script_location", str(_MIGRATIONS))
    settings.set_main_option("path_separator", "os")
    return settings


def _to_json(value: Any) -> bytes:
    """Raises ValueError for NaN and infinities, which are no JSON."""
    if isinstance(value, JsonText):
        return bytes(value)
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


# The invalid indexes of this schema.
_INVALID = text("""
    select format('%I.%I', n.nspname, c.relname)
    from pg_index i
    join pg_class c on c.oid = i.indexrelid
    join pg_namespace n on n.oid = c.relnamespace
    where not i.indisvalid and c.relkind = 'i' and n.nspname = current_schema
    order by 1
""")


def invalid(connection: Connection) -> list[str]:
    return list(connection.scalars(_INVALID))


def rebuild(connection: Connection) -> list[str]:
    """Rebuilds the invalid ones while everybody goes on writing; returns their names.

    Args:
        connection: in autocommit: Postgres allows no transaction around it.
    """
    found = invalid(connection)
    for name in found:
        connection.exec_driver_sql(f"reindex index concurrently {name}")
    return found
