"""Values in Postgres's binary format: the fields of COPY, and arrays as parameters of a statement. Pure.

A field is its length and its bytes, big-endian; NULL has length -1. An array of them begins with array_send's
head: dimensions, has-null flag, element oid, length, lower bound. psycopg's own dumper looks at every element
of a list several times: that was a quarter of what a batch of turns cost the drainer.

Postgres arrays of int4 and float4, bound in binary straight from numpy buffers.

Binding Python lists costs 10 times as much (44 against 410 turns of 4,000 tokens a second were measured).
The wire format is PostgreSQL's array_send: ndim, has-null flag, element oid, length, lower bound; then for
each element its byte length and its bytes, all big-endian; a NULL has length -1 and no bytes.

A missing float is NaN in numpy and NULL in Postgres, both ways. Ids are never missing: a NULL inside an
int4[] is an error. Rows come back in Postgres's text format, which prints a float4 so that it reads back
as the same 32 bits.

Rows into a table by COPY, in Postgres's binary format: a tenth of the CPU of a statement a row.

A row is the number of its fields, then the fields. How a column is written follows from its
type. COPY knows no ON CONFLICT: the caller has looked what is there.
"""

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg.adapt import Dumper, Loader
from psycopg.pq import Format
from sqlalchemy import (
    JSON,
    Boolean,
    Connection,
    Date,
    DateTime,
    Dialect,
    Float,
    Integer,
    LargeBinary,
    Table,
    Text,
    Uuid,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import UserDefinedType

Field = Callable[[Any], bytes]

NULL = struct.pack(">i", -1)
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(2000, 1, 1).toordinal()
_TRUE, _FALSE = b"\0\0\0\1\1", b"\0\0\0\1\0"
_HEAD = struct.Struct(">iiIii")
_length = struct.Struct(">i").pack
_int4 = struct.Struct(">ii").pack
_int8 = struct.Struct(">iq").pack
_float8 = struct.Struct(">id").pack
_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class Array(bytes):
    """An array as Postgres receives it; the statement has to name its type: `cast(:ids as uuid[])`."""


def blob(value: bytes) -> bytes:
    return _length(len(value)) + value


def text(value: str) -> bytes:
    return blob(value.encode())


def json_text(value: Any) -> bytes:
    """Raises ValueError for NaN and infinities, which are no JSON."""
    return blob(_json(value).encode())


def uuid(value: UUID) -> bytes:
    return b"\0\0\0\x10" + value.bytes


def boolean(value: bool) -> bytes:
    return _TRUE if value else _FALSE


def integer(value: int) -> bytes:
    return _int4(4, value)


def double(value: float) -> bytes:
    return _float8(8, value)


def day(value: date) -> bytes:
    return _int4(4, value.toordinal() - _EPOCH_DAY)


def moment(value: datetime) -> bytes:
    since = value - _EPOCH
    return _int8(8, (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)


def texts(values: Iterable[str | None]) -> Array:
    return _array(25, text, list(values))


def blobs(values: Iterable[bytes | None]) -> Array:
    return _array(17, blob, list(values))


def uuids(values: Iterable[UUID | None]) -> Array:
    return _array(2950, uuid, list(values))


def integers(values: Iterable[int | None]) -> Array:
    return _array(23, integer, list(values))


def days(values: Iterable[date]) -> Array:
    return _array(1082, day, list(values))


def moments(values: Iterable[datetime]) -> Array:
    return _array(1184, moment, list(values))


def _array(oid: int, field: Field, values: Sequence[Any]) -> Array:
    """One dimension, or none where it is empty."""
    fields = [NULL if value is None else field(value) for value in values]
    head = _HEAD.pack(1, 1, oid, len(fields), 1) if fields else _HEAD.pack(0, 0, oid, 0, 0)[:12]
    return Array(head + b"".join(fields))


Ids = NDArray[np.int32]
Logprobs = NDArray[np.float32]

_INT4, _INT4_ARRAY = 23, 1007
_FLOAT4, _FLOAT4_ARRAY = 700, 1021
_EMPTY = struct.Struct(">iiI")  # ndim 0, no null, element oid
_INT4_RANGE = np.iinfo(np.int32)


class Int4Wire(bytes):
    """An int4[] as Postgres receives it."""


class Float4Wire(bytes):
    """A float4[] as Postgres receives it."""


def encode_ids(ids: NDArray[Any] | Sequence[int]) -> Int4Wire:
    """The wire form of `ids`, shape [n].

    Raises:
        ValueError: more than one dimension, not integers, masked, or outside int4.
    """
    array = np.asanyarray(ids)
    if type(array) is np.ndarray and array.dtype == np.int32 and array.ndim == 1 and array.size:
        return Int4Wire(_encode(_INT4, array, None))
    if array.ndim != 1:
        raise ValueError(f"an int4[] has one dimension, not {array.ndim}")
    if array.size == 0:
        return Int4Wire(_EMPTY.pack(0, 0, _INT4))
    if array.dtype.kind not in "iu" or np.ma.is_masked(array):
        raise ValueError(f"an int4[] holds integers, none missing; this is {array.dtype}")
    if array.min() < _INT4_RANGE.min or array.max() > _INT4_RANGE.max:
        raise ValueError("an id is outside int4")
    return Int4Wire(_encode(_INT4, array, None))


def encode_logprobs(logprobs: NDArray[Any] | Sequence[float | None]) -> Float4Wire:
    """The wire form of `logprobs`, shape [n]; NaN, None and masked positions become NULL.

    Raises:
        ValueError: more than one dimension.
    """
    if np.ma.isMaskedArray(logprobs):
        logprobs = np.ma.filled(logprobs, np.nan)
    array = np.asarray(logprobs, dtype=np.float32)
    if array.ndim != 1:
        raise ValueError(f"a float4[] has one dimension, not {array.ndim}")
    if array.size == 0:
        return Float4Wire(_EMPTY.pack(0, 0, _FLOAT4))
    missing = np.isnan(array)
    return Float4Wire(_encode(_FLOAT4, array.view(np.int32), missing if missing.any() else None))


def _encode(oid: int, words: NDArray[Any], missing: NDArray[np.bool_] | None) -> bytes:
    """`words`: the elements' bits as integers, shape [n]; `missing`: shape [n], or None where nothing is."""
    pairs = np.empty((words.size, 2), dtype=">i4")
    pairs[:, 0] = 4
    pairs[:, 1] = words
    head = _HEAD.pack(1, missing is not None, oid, words.size, 1)
    if missing is None:
        return head + pairs.tobytes()
    pairs[missing, 0] = -1
    sent = np.ones(pairs.shape, dtype=np.bool_)
    sent[missing, 1] = False
    return head + pairs[sent].tobytes()


def decode_ids(text: bytes) -> Ids:
    """`{1,2,3}` as int32, shape [n]. Raises ValueError for a NULL inside."""
    if b"NULL" in text:
        raise ValueError("a NULL inside an int4[]: ids are never missing")
    return np.fromstring(text[1:-1].decode("ascii"), dtype=np.int32, sep=",")


def decode_logprobs(text: bytes) -> Logprobs:
    """`{-0.5,NULL}` as float32, shape [n], with NaN for NULL."""
    return np.fromstring(text[1:-1].replace(b"NULL", b"nan").decode("ascii"), dtype=np.float32, sep=",")


class _Int4Dumper(Dumper):
    format, oid = Format.BINARY, _INT4_ARRAY

    def dump(self, obj: Int4Wire) -> bytes:
        return bytes(obj)


class _Float4Dumper(Dumper):
    format, oid = Format.BINARY, _FLOAT4_ARRAY

    def dump(self, obj: Float4Wire) -> bytes:
        return bytes(obj)


class _ArrayDumper(Dumper):
    format, oid = Format.BINARY, 0  # the statement names the type

    def dump(self, obj: Array) -> bytes:
        return bytes(obj)


class _Int4Loader(Loader):
    def load(self, data: bytes | bytearray | memoryview) -> Ids:
        return decode_ids(bytes(data))


class _Float4Loader(Loader):
    def load(self, data: bytes | bytearray | memoryview) -> Logprobs:
        return decode_logprobs(bytes(data))


def register(connection: psycopg.Connection[Any]) -> None:
    """Teaches one psycopg connection these types; `database.engine` does so for each of its own."""
    connection.adapters.register_dumper(Int4Wire, _Int4Dumper)
    connection.adapters.register_dumper(Float4Wire, _Float4Dumper)
    connection.adapters.register_dumper(Array, _ArrayDumper)
    connection.adapters.register_loader(_INT4_ARRAY, _Int4Loader)
    connection.adapters.register_loader(_FLOAT4_ARRAY, _Float4Loader)


class Int4Array(UserDefinedType[Ids]):
    """int4[]: takes a numpy array or a list of ints, gives int32, shape [n]."""

    cache_ok = True
    render_bind_cast = True

    def get_col_spec(self, **_: Any) -> str:
        return "INTEGER[]"

    def bind_processor(self, dialect: Dialect) -> Any:
        return lambda value: None if value is None else encode_ids(value)


class Float4Array(UserDefinedType[Logprobs]):
    """float4[]: takes a numpy array or a list, gives float32, shape [n]; NaN stands for NULL, both ways."""

    cache_ok = True
    render_bind_cast = True

    def get_col_spec(self, **_: Any) -> str:
        return "REAL[]"

    def bind_processor(self, dialect: Dialect) -> Any:
        return lambda value: None if value is None else encode_logprobs(value)


_COPY_HEAD = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
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


def _encoded(rows: Sequence[Mapping[str, Any]], fields: Sequence[Field]) -> bytes:
    count = struct.pack(">h", len(fields))
    parts = [_COPY_HEAD]
    for row in rows:
        parts.append(count)
        parts += [
            NULL if value is None else field(value) for field, value in zip(fields, row.values(), strict=True)
        ]
    parts.append(_TAIL)
    return b"".join(parts)


def _field(kind: Any) -> Field:
    """Raises TypeError for a type that no table has today."""
    for known, field in _FIELDS:
        if isinstance(kind, known):
            return field
    raise TypeError(f"COPY of {kind!r} is not known")


# An order: BigInteger would be an Integer, and is in none of the tables that are copied into.
_FIELDS: tuple[tuple[type[Any], Field], ...] = (
    (Uuid, uuid),
    (Text, text),
    (Boolean, boolean),
    (Date, day),
    (DateTime, moment),
    (Float, double),
    (Integer, integer),
    (LargeBinary, blob),
    (JSON, json_text),
    (Int4Array, lambda value: blob(encode_ids(value))),
    (Float4Array, lambda value: blob(encode_logprobs(value))),
)
