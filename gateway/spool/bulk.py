"""A segment's records from a place on, read in large pieces: a read for each costs more than what is read."""

import os

from gateway.spool import format as spool

_PIECE = 256 * 1024  # bytes
_LONGEST_HEAD = 64  # bytes; more than any version's


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
            CorruptRecordError: there is no record here, or a damaged one.
        """
        found = self._decode(offset)
        left = self.length - offset
        if found is not None or left <= 0:
            return found
        self._load(offset, min(_PIECE, left))
        found = self._decode(offset)
        if found is not None:
            return found
        head = spool.head(self._data)
        if head is None or not len(self._data) < head.size <= left:
            return None
        self._load(offset, head.size)  # longer than a piece
        return self._decode(offset)

    def behind(self, offset: int, size: int | None) -> int | None:
        """Where to read on behind the damaged record at `offset`; None: no whole record follows.

        Args:
            size: of the damaged record, where it is known. It is believed where a record begins there, or the
                file ends: bytes may be missing too.
        """
        if size is not None and self._may_begin(offset + size):
            return offset + size
        rest = os.pread(self._descriptor, max(0, self.length - offset - 1), offset + 1)
        for match in spool.MAGIC.finditer(rest):
            try:
                if spool.decode(rest, match.start()) is not None:
                    return offset + 1 + match.start()
            except spool.CorruptRecordError:
                pass
        return None

    def _may_begin(self, offset: int) -> bool:
        """Whether a record begins at `offset`, or may begin: the file ends there, or in its head."""
        if offset > self.length:
            return False
        try:
            spool.head(os.pread(self._descriptor, _LONGEST_HEAD, offset))
        except spool.CorruptRecordError as error:
            return error.size is not None
        return True

    def _load(self, offset: int, size: int) -> None:
        self._start = offset
        self._data = os.pread(self._descriptor, size, offset)

    def _decode(self, offset: int) -> tuple[spool.Record, int] | None:
        at = offset - self._start
        found = spool.decode(self._data, at)
        return None if found is None else (found[0], found[1] - at)
