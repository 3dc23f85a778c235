"""Server-sent events out of bytes, without I/O: however the bytes are cut, the events are the same.

Lines end at CRLF, LF or CR and nowhere else: U+2028 inside JSON is an ordinary character. Comments and
events without data are dropped. What lacks its last blank line is still an event when the stream is closed.
"""

import re
from typing import TypeAlias

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


#: The `event:` field, empty for an ordinary message, and the `data:` lines, joined by LF.
Event: TypeAlias = tuple[bytes, bytes]


class Parser:
    """Feed it bytes, then close it; both return the events that are complete."""

    def __init__(self) -> None:
        self._partial: list[bytes] = []  # a long line may come in many pieces: joined once
        self._after_cr = False
        self._is_first = True
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
        return self._take(lines)

    def close(self) -> list[Event]:
        last = b"".join(self._partial)
        self._partial = []
        return self._take([last, b""])

    def _take(self, lines: list[bytes]) -> list[Event]:
        if self._is_first:
            lines[0] = lines[0].removeprefix(_BOM)
            self._is_first = False
        events: list[Event] = []
        for line in lines:
            if line.startswith(b"data: "):  # nearly always
                self._data.append(line[6:])
            elif line:
                self._field(line)
            elif self._data:
                data = b"\n".join(self._data)
                if data.strip():
                    events.append((self._name, data))
                self._name, self._data = b"", []
            else:
                self._name = b""
        return events

    def _field(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
        elif field == b"event":
            self._name = value.removeprefix(b" ")
