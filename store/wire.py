"""Values in Postgres's binary format: the fields of COPY, and arrays as parameters of a statement. Pure.

A field is its length and its bytes, big-endian; NULL has length -1. An array of them begins with array_send's
head: dimensions, has-null flag, element oid, length, lower bound. psycopg's own dumper looks at every element
of a list several times: that was a quarter of what a batch of turns cost the drainer.
"""

import json
import struct
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

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
