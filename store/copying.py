"""Rows into a table by COPY, in Postgres's binary format: a tenth of the CPU of a statement a row.

A row is the number of its fields, then the fields (`store/wire.py`). How a column is written follows from its
type. COPY knows no ON CONFLICT: the caller has looked what is there.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from sqlalchemy import (
    JSON,
    Boolean,
    Connection,
    Date,
    DateTime,
    Float,
    Integer,
    LargeBinary,
    Table,
    Text,
    Uuid,
)
from sqlalchemy.exc import DBAPIError

from store import wire
from store.arrays import Float4Array, Int4Array, encode_ids, encode_logprobs

_HEAD = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
_TAIL = struct.pack(">h", -1)


def copy_rows(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows that all have the same columns in the same order; the others take their defaults.

    Raises:
        DBAPIError: as an INSERT would; a row that is there already is an IntegrityError.
        ValueError: JSON that is none (NaN), or ids beyond int4.
    """
    if not rows:
        return
    names = list(rows[0])
    statement = f"copy {table.name} ({', '.join(names)}) from stdin (format binary)"
    data = _encoded(rows, [_field(table.c[name].type) for name in names])
    raw = connection.connection.driver_connection
    if not isinstance(raw, psycopg.Connection):
        raise TypeError("COPY needs psycopg")
    if not connection.in_transaction():
        connection.begin()  # a rollback must know of what COPY began
    try:
        with raw.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            copy.write(data)
    except psycopg.Error as error:
        if raw.broken:
            connection.invalidate(error)
        raise DBAPIError.instance(
            statement, None, error, psycopg.Error, hide_parameters=True, dialect=connection.dialect
        ) from error


def _encoded(rows: Sequence[Mapping[str, Any]], fields: Sequence[wire.Field]) -> bytes:
    count = struct.pack(">h", len(fields))
    parts = [_HEAD]
    for row in rows:
        parts.append(count)
        parts += [
            wire.NULL if value is None else field(value)
            for field, value in zip(fields, row.values(), strict=True)
        ]
    parts.append(_TAIL)
    return b"".join(parts)


def _field(kind: Any) -> wire.Field:
    """Raises TypeError for a type that no table has today."""
    for known, field in _FIELDS:
        if isinstance(kind, known):
            return field
    raise TypeError(f"COPY of {kind!r} is not known")


# An order: BigInteger would be an Integer, and is in none of the tables that are copied into.
_FIELDS: tuple[tuple[type[Any], wire.Field], ...] = (
    (Uuid, wire.uuid),
    (Text, wire.text),
    (Boolean, wire.boolean),
    (Date, wire.day),
    (DateTime, wire.moment),
    (Float, wire.double),
    (Integer, wire.integer),
    (LargeBinary, wire.blob),
    (JSON, wire.json_text),
    (Int4Array, lambda value: wire.blob(encode_ids(value))),
    (Float4Array, lambda value: wire.blob(encode_logprobs(value))),
)
