"""Tool calls out of streamed pieces, also from servers that number them badly.

Seen in the field: no index at all, the same index for every call, an id that comes late or in every piece,
arguments in pieces or as an object.
"""

from typing import Any

import orjson


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
