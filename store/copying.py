"""Rows into a table by COPY, in Postgres's binary format: a tenth of the CPU of a statement a row.

A row is the number of its fields, then each field's length and bytes, big-endian; NULL has length -1. Each
column's encoder follows from its type. COPY knows no ON CONFLICT: the caller has looked what is there.
"""

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
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

from store.arrays import Float4Array, Int4Array, encode_ids, encode_logprobs

_HEAD = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
_TAIL = struct.pack(">h", -1)
_NULL = struct.pack(">i", -1)
_length = struct.Struct(">i").pack
_int4 = struct.Struct(">i").pack
_int8 = struct.Struct(">q").pack
_float8 = struct.Struct(">d").pack
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(2000, 1, 1).toordinal()

Encoder = Callable[[Any], bytes]


def copy_rows(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows that all have the same columns; the others take their defaults.

    Raises:
        DBAPIError: as an INSERT would; a row that is there already is an IntegrityError.
        ValueError: JSON that is none (NaN), or ids beyond int4.
    """
    if not rows:
        return
    names = list(rows[0])
    encoders = [_encoder(table.c[name].type) for name in names]
    data = b"".join((_HEAD, *(_row(row.values(), encoders) for row in rows), _TAIL))
    statement = f"copy {table.name} ({', '.join(names)}) from stdin (format binary)"
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


def _row(values: Iterable[Any], encoders: Sequence[Encoder]) -> bytes:
    parts = [struct.pack(">h", len(encoders))]
    for value, encode in zip(values, encoders, strict=True):
        if value is None:
            parts.append(_NULL)
        else:
            field = encode(value)
            parts.append(_length(len(field)))
            parts.append(field)
    return b"".join(parts)


def _timestamp(value: datetime) -> bytes:
    since = value - _EPOCH
    return _int8((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _encoder(kind: Any) -> Encoder:
    """Raises TypeError for a type that no table has today."""
    for known, encode in _ENCODERS:
        if isinstance(kind, known):
            return encode
    raise TypeError(f"COPY of {kind!r} is not known")


# An order: BigInteger would be an Integer, and is in none of the tables that are copied into.
_ENCODERS: tuple[tuple[type[Any], Encoder], ...] = (
    (Uuid, lambda value: value.bytes),
    (Text, str.encode),
    (Boolean, lambda value: b"\1" if value else b"\0"),
    (Date, lambda value: _int4(value.toordinal() - _EPOCH_DAY)),
    (DateTime, _timestamp),
    (Float, _float8),
    (Integer, _int4),
    (LargeBinary, bytes),
    (JSON, _json),
    (Int4Array, encode_ids),
    (Float4Array, encode_logprobs),
)
