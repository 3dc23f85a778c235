"""How migrations run: one at a time, each in its own transaction, none waiting long for a lock."""

import re
from logging.config import fileConfig
from typing import Any, Literal

from alembic import context
from sqlalchemy import JSON, Connection, NullPool, event, text

from dukou.store import binary, database, tables

LOCK_TIMEOUT = "2s"  # a queued ALTER makes everybody behind it wait: better to fail and be run again
MIGRATORS = 0x44554B4F  # "DUKO": the advisory lock that two migrators meet at


def chosen_url() -> str:
    """The caller's, else `-x url=…`, else the configuration's."""
    if "url" in context.config.attributes:
        return str(context.config.attributes["url"])
    if context.config.config_file_name:
        fileConfig(context.config.config_file_name, disable_existing_loggers=False)
    given = context.get_x_argument(as_dictionary=True).get("url")
    if given:
        return database.normalised(given)
    from dukou.settings.load import load_config

    return database.url(load_config())


def limit_lock_waits(connection: Connection) -> None:
    connection.exec_driver_sql(f"set local lock_timeout = '{LOCK_TIMEOUT}'")


def frozen_type(kind: str, item: Any, _: Any) -> str | Literal[False]:
    """How `--autogenerate` writes Dukou's own types: a migration imports nothing that may change."""
    if kind != "type":
        return False
    frozen = {
        binary.Int4Array: "sa.ARRAY(sa.Integer())",
        binary.Float4Array: "sa.ARRAY(sa.REAL())",
        JSON: "sa.JSON()",
    }
    return frozen.get(type(item), False)


def no_partition(name: str | None, kind: str, _: Any) -> bool:
    """Partitions are made as time goes on (`store/partitions.py`): the models know only their tables."""
    return kind != "table" or not re.search(r"_(default|\d{8}_\d{8})$", name or "")


def run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=tables.metadata,
        transaction_per_migration=True,
        render_item=frozen_type,
        include_name=no_partition,
    )
    with context.begin_transaction():
        context.run_migrations()


def main() -> None:
    """A transaction of its own holds the lock, so that it spans every migration, through pgbouncer too."""
    if context.is_offline_mode():
        raise SystemExit("migrations look at the database: there is no offline mode")
    engine = database.engine_at(chosen_url(), poolclass=NullPool)
    with engine.begin() as guard, engine.connect() as connection:
        guard.execute(text("select pg_advisory_xact_lock(:key)"), {"key": MIGRATORS})
        event.listen(connection, "begin", limit_lock_waits)
        run(connection)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as outside:
        database.rebuild(
            outside
        )  # after the lock: who waits for that holds a snapshot, which this would wait for


main()
