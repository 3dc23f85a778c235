"""Server-sent events out of bytes, without I/O: however the bytes are cut, the events are the same.

Lines end at CRLF, LF or CR and nowhere else: U+2028 inside JSON is an ordinary character. Comments and
events without data are dropped. What lacks its last blank line is still an event when the stream is closed.

Tool calls out of streamed pieces, also from servers that number them badly.

Seen in the field: no index at all, the same index for every call, an id that comes late or in every piece,
arguments in pieces or as an object.
"""

import re
from typing import Any, TypeAlias

import orjson

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


class ToolCalls:
    """Collects the pieces of one choice."""

    def __init__(self) -> None:
        self._calls: list[dict[str, Any]] = []
        self._by_id: dict[str, dict[str, Any]] = {}
        self._by_index: dict[int, dict[str, Any]] = {}

    def add(self, pieces: Any) -> None:
        """Takes the `tool_calls` list of one delta or message."""
        known = [piece for piece in pieces if isinstance(piece, dict)] if isinstance(pieces, list) else []
        for position, piece in enumerate(known):
            call = self._find(piece, position if len(known) > 1 else None)
            _merge(call, piece)

    def add_legacy(self, piece: Any) -> None:
        """Takes a `function_call`, the form before tool calls: there is at most one."""
        if isinstance(piece, dict):
            self.add([{"index": 0, "function": piece}])

    def finish(self) -> tuple[dict[str, Any], ...]:
        return tuple(self._calls)

    def _find(self, piece: dict[str, Any], position: int | None) -> dict[str, Any]:
        call_id, index = _id(piece), piece.get("index")
        if call_id is not None and call_id in self._by_id:
            call = self._by_id[call_id]
        elif isinstance(index, int):
            call = self._by_index.get(index) or self._open()
            if call_id is not None and call["id"] is not None:  # the index is used for another call
                call = self._open()
            self._by_index[index] = call
        else:
            call = self._without_index(piece, position)
        if call_id is not None:
            call["id"] = call_id
            self._by_id[call_id] = call
        return call

    def _without_index(self, piece: dict[str, Any], position: int | None) -> dict[str, Any]:
        if not self._calls or (position is not None and position >= len(self._calls)):
            return self._open()
        last = self._calls[-1 if position is None else position]
        begins = bool(_function(piece).get("name")) and bool(last["function"]["name"])
        is_other = _id(piece) is not None and last["id"] is not None
        return self._open() if begins or is_other else last

    def _open(self) -> dict[str, Any]:
        self._calls.append({"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
        return self._calls[-1]


def _merge(call: dict[str, Any], piece: dict[str, Any]) -> None:
    if isinstance(piece.get("type"), str) and piece["type"]:
        call["type"] = piece["type"]
    function, source = call["function"], _function(piece)
    name, arguments = source.get("name"), source.get("arguments")
    if isinstance(name, str) and name != function["name"]:  # some repeat the whole name in every piece
        function["name"] += name
    if isinstance(arguments, str):
        function["arguments"] += arguments
    elif isinstance(arguments, dict | list):
        function["arguments"] += orjson.dumps(arguments).decode()


def _function(piece: dict[str, Any]) -> dict[str, Any]:
    function = piece.get("function")
    return function if isinstance(function, dict) else {}


def _id(piece: dict[str, Any]) -> str | None:
    call_id = piece.get("id")
    return call_id if isinstance(call_id, str) and call_id else None
