"""A segment's records from a place on, read in large pieces: a read for each costs more than what is read."""

import os

from gateway.spool import format as spool

_PIECE = 256 * 1024  # bytes


class BulkReader:
    """What lies in an open file around the place that was asked for last."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.length = os.fstat(descriptor).st_size  # bytes of the file when it was opened
        self._start = 0
        self._data = b""

    def record(self, offset: int) -> tuple[spool.Record, int] | None:
        """The record at `offset` and its size; None where the file ends inside it.

        Raises:
            CorruptRecordError: there is no record here.
        """
        found = self._decode(offset)
        left = self.length - offset
        if found is not None or left <= 0:
            return found
        self._load(offset, min(_PIECE, left))
        found = self._decode(offset)
        if found is not None or len(self._data) < spool.HEAD_BYTES:
            return found
        size = spool.size(self._data)
        if not len(self._data) < size <= left:
            return None
        self._load(offset, size)  # longer than a piece
        return self._decode(offset)

    def resume(self, offset: int) -> int | None:
        """The offset of the next whole record behind damaged bytes; None where there is none."""
        rest = os.pread(self._descriptor, max(0, self.length - offset), offset)
        at = rest.find(spool.MAGIC)
        while at >= 0:
            try:
                if spool.decode(rest, at) is not None:
                    return offset + at
            except ValueError:
                pass
            at = rest.find(spool.MAGIC, at + 1)
        return None

    def _load(self, offset: int, size: int) -> None:
        self._start = offset
        self._data = os.pread(self._descriptor, size, offset)

    def _decode(self, offset: int) -> tuple[spool.Record, int] | None:
        at = offset - self._start
        found = spool.decode(self._data, at)
        return None if found is None else (found[0], found[1] - at)
