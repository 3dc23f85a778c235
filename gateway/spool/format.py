"""Spool records: how a request and its reply lie on disk.

    record  = magic D0 4B | kind u8 | crc32 u32 | length u32 | payload      (little-endian)
    payload = meta length u32 | meta (JSON object) | body (raw bytes)

The checksum covers the payload. A record that ends early is a torn tail: its writer died inside the write.
"""

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import orjson

from store.errors import DukouError

_HEAD = struct.Struct("<2sBII")
_META = struct.Struct("<I")
MAGIC = b"\xd0\x4b"
HEAD_BYTES = _HEAD.size


class Kind(IntEnum):
    REQUEST = 1
    REPLY = 2
    FEEDBACK = 3  # stands alone: what somebody thinks of an earlier turn


_KINDS = {int(kind): kind for kind in Kind}


class CorruptRecordError(DukouError, ValueError):
    """The bytes at this offset are no record, or their checksum does not match."""


@dataclass(frozen=True, slots=True)
class Record:
    kind: Kind
    meta: dict[str, Any]
    body: bytes


def encode(kind: Kind, meta: dict[str, Any], body: bytes) -> bytes:
    """One record, ready to be appended in a single write."""
    meta_json = orjson.dumps(meta)
    payload = b"".join((_META.pack(len(meta_json)), meta_json, body))
    return _HEAD.pack(MAGIC, kind, zlib.crc32(payload), len(payload)) + payload


def size(head: bytes) -> int:
    """Bytes of the record that begins with these HEAD_BYTES.

    Raises:
        CorruptRecordError: no record begins so.
    """
    magic, kind, _, length = _HEAD.unpack_from(head)
    if magic != MAGIC or kind not in _KINDS:
        raise CorruptRecordError("no record begins here")
    return HEAD_BYTES + int(length)


def decode(buffer: bytes | memoryview, offset: int = 0) -> tuple[Record, int] | None:
    """The record at `offset` and the offset behind it; None where the bytes end inside a record.

    Raises:
        CorruptRecordError: there is no record here.
    """
    view = memoryview(buffer)
    if len(view) - offset < _HEAD.size:
        return None
    magic, kind, checksum, length = _HEAD.unpack_from(view, offset)
    if magic != MAGIC or kind not in _KINDS:
        raise CorruptRecordError(f"no record begins at byte {offset}")
    end = offset + _HEAD.size + length
    if len(view) < end:
        return None
    payload = view[offset + _HEAD.size : end]
    if zlib.crc32(payload) != checksum:
        raise CorruptRecordError(f"the record at byte {offset} fails its checksum")
    meta, body_at = _meta_of(payload, offset)
    return Record(_KINDS[kind], meta, bytes(payload[body_at:])), end


def _meta_of(payload: memoryview, offset: int) -> tuple[dict[str, Any], int]:
    """The meta and where the body begins. Raises CorruptRecordError."""
    try:
        (length,) = _META.unpack_from(payload)
        meta = orjson.loads(payload[_META.size : _META.size + length])
    except (struct.error, orjson.JSONDecodeError) as error:
        raise CorruptRecordError(f"the meta of the record at byte {offset} cannot be read") from error
    if not isinstance(meta, dict):
        raise CorruptRecordError(f"the meta of the record at byte {offset} is no JSON object")
    return meta, _META.size + length
