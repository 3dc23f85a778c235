"""Indexes that a broken-off `create index concurrently` left: written to at every insert, and never used."""

from sqlalchemy import Connection, text

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
