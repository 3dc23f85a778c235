"""Server-sent events out of bytes, without I/O: however the bytes are cut, the events are the same.

Lines end at CRLF, LF or CR and nowhere else: U+2028 inside JSON is an ordinary character. Comments and
events without data are dropped. What lacks its last blank line is still an event when the stream is closed.
"""

import re
from typing import NamedTuple

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    name: bytes  # the `event:` field; empty for an ordinary message
    data: bytes  # the `data:` lines, joined by LF


class Parser:
    """Feed it bytes, then close it; both return the events that are complete."""

    def __init__(self) -> None:
        self._partial: list[bytes] = []  # a long line may come in many pieces: joined once
        self._after_cr = False
        self._first_line = True
        self._name = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[Event]:
        if not chunk:
            return []
        # A CR ends its line at once; only the LF that may follow it has to be known.
        if self._after_cr and chunk[:1] == b"\n":
            chunk = chunk[1:]
            self._after_cr = False
            if not chunk:
                return []
        self._after_cr = chunk.endswith(b"\r")
        lines = _LINE_END.split(chunk) if b"\r" in chunk else chunk.split(b"\n")
        self._partial.append(lines[0])
        if len(lines) == 1:
            return []
        lines[0] = b"".join(self._partial)
        self._partial = [lines.pop()]
        return [event for line in lines if (event := self._line(line)) is not None]

    def close(self) -> list[Event]:
        last = b"".join(self._partial)
        self._partial = []
        events = [self._line(last)] if last else []
        events.append(self._dispatch())
        return [event for event in events if event is not None]

    def _line(self, line: bytes) -> Event | None:
        if self._first_line:
            line = line.removeprefix(_BOM)
            self._first_line = False
        if not line:
            return self._dispatch()
        if line.startswith(b"data: "):  # nearly always
            self._data.append(line[6:])
            return None
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value
        return None

    def _dispatch(self) -> Event | None:
        name, data = self._name, self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        self._name, self._data = b"", []
        return Event(name, data) if data.strip() else None
