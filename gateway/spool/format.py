"""Spool records: how a request and its reply lie on disk.

    version 1  magic D0 4B | kind u8 | payload crc32 u32 | length u32 | payload      (little-endian)
    version 2  magic FD 32 | kind u8 | length u32 | payload crc32 u32 | head crc32 u32 | payload
    payload    meta length u32 | meta (JSON object) | body (raw bytes)

In version 2 a checksum covers the head too, so that a damaged length is known at once, and the length tells
where the next record begins although the payload is damaged. A segment may hold records of both versions.
A record that ends early is a torn tail: its writer died inside the write.
"""

import re
import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, NamedTuple

import orjson

from dukou.errors import DukouError

Version = Literal[1, 2]

#: What `encode` writes. Version 1 is still read: spools outlive upgrades.
WRITE_VERSION: Version = 2

_HEAD_1 = struct.Struct("<2sBII")
_HEAD_2 = struct.Struct("<2sBIII")
_META = struct.Struct("<I")
_CHECKSUM_BYTES = 4  # the last of a head of version 2; it covers those before
#: Damage to one byte makes neither magic of the other. FD occurs in no UTF-8.
MAGIC_1, MAGIC_2 = b"\xd0\x4b", b"\xfd\x32"
#: Finds the places where a record may begin.
MAGIC = re.compile(re.escape(MAGIC_1) + b"|" + re.escape(MAGIC_2))


class Kind(IntEnum):
    REQUEST = 1
    REPLY = 2
    FEEDBACK = 3  # stands alone: what somebody thinks of an earlier turn


_KINDS = {int(kind): kind for kind in Kind}


class CorruptRecordError(DukouError, ValueError):
    """The bytes at this offset are no record, or a checksum does not match."""

    def __init__(self, message: str, size: int | None = None) -> None:
        super().__init__(message)
        self.size = size  # bytes of the damaged record; None: unknown


@dataclass(frozen=True, slots=True)
class Record:
    kind: Kind
    meta: dict[str, Any]
    body: bytes


class Head(NamedTuple):
    """What a record says of itself before its payload."""

    kind: Kind
    head_bytes: int
    length: int  # bytes of the payload
    checksum: int  # CRC-32 of the payload
    is_checked: bool  # whether a checksum vouches for `length`

    @property
    def size(self) -> int:
        """Bytes of the whole record."""
        return self.head_bytes + self.length


def encode(kind: Kind, meta: dict[str, Any], body: bytes, version: Version | None = None) -> bytes:
    """One record, ready to be appended in a single write. `version`: WRITE_VERSION where it is None."""
    meta_json = orjson.dumps(meta)
    payload = b"".join((_META.pack(len(meta_json)), meta_json, body))
    checksum = zlib.crc32(payload)
    if (version or WRITE_VERSION) == 1:
        return _HEAD_1.pack(MAGIC_1, kind, checksum, len(payload)) + payload
    unchecked = _HEAD_2.pack(MAGIC_2, kind, len(payload), checksum, 0)[:-_CHECKSUM_BYTES]
    return b"".join((unchecked, struct.pack("<I", zlib.crc32(unchecked)), payload))


def head(buffer: bytes | memoryview, offset: int = 0) -> Head | None:
    """The head at `offset`; None where the bytes end inside it.

    Raises:
        CorruptRecordError: no record begins here.
    """
    view = memoryview(buffer)[offset : offset + _HEAD_2.size]
    magic = bytes(view[:2])
    if magic == MAGIC_1:
        return _head_1(view, offset)
    if magic == MAGIC_2:
        return _head_2(view, offset)
    if magic in (b"", MAGIC_1[:1], MAGIC_2[:1]):
        return None
    raise _no_record(offset)


def decode(buffer: bytes | memoryview, offset: int = 0) -> tuple[Record, int] | None:
    """The record at `offset` and the offset behind it; None where the bytes end inside a record.

    Raises:
        CorruptRecordError: there is no record here, or a damaged one.
    """
    found = head(buffer, offset)
    if found is None:
        return None
    view = memoryview(buffer)
    end = offset + found.size
    if len(view) < end:
        return None
    payload = view[offset + found.head_bytes : end]
    if zlib.crc32(payload) != found.checksum:
        known = found.size if found.is_checked else None
        raise CorruptRecordError(f"the record at byte {offset} fails its checksum", known)
    try:
        meta, body_at = _meta_of(payload)
    except ValueError as error:
        raise CorruptRecordError(f"the record at byte {offset}: {error}", found.size) from error
    return Record(found.kind, meta, bytes(payload[body_at:])), end


def _head_1(view: memoryview, offset: int) -> Head | None:
    if len(view) < _HEAD_1.size:
        return None
    _, kind, checksum, length = _HEAD_1.unpack_from(view)
    if kind not in _KINDS:
        raise _no_record(offset)
    return Head(_KINDS[kind], _HEAD_1.size, length, checksum, False)


def _head_2(view: memoryview, offset: int) -> Head | None:
    if len(view) < _HEAD_2.size:
        return None
    _, kind, length, checksum, own_checksum = _HEAD_2.unpack_from(view)
    if zlib.crc32(view[:-_CHECKSUM_BYTES]) != own_checksum:
        raise CorruptRecordError(f"the head of the record at byte {offset} fails its checksum")
    if kind not in _KINDS:  # of a later version
        raise CorruptRecordError(
            f"the record at byte {offset} is of an unknown kind, {kind}", _HEAD_2.size + length
        )
    return Head(_KINDS[kind], _HEAD_2.size, length, checksum, True)


def _no_record(offset: int) -> CorruptRecordError:
    return CorruptRecordError(f"no record begins at byte {offset}")


def _meta_of(payload: memoryview) -> tuple[dict[str, Any], int]:
    """The meta and where the body begins. Raises ValueError."""
    try:
        (length,) = _META.unpack_from(payload)
        meta = orjson.loads(payload[_META.size : _META.size + length])
    except (struct.error, orjson.JSONDecodeError) as error:
        raise ValueError("its meta cannot be read") from error
    if not isinstance(meta, dict):
        raise ValueError("its meta is no JSON object")  # noqa: TRY004 (it is a value from disk)
    return meta, _META.size + length
