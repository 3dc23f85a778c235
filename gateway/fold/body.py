"""Reads a request's body once: what it says, and where its messages and tools lie. Pure.

JSON is read as `lenient.loads_exact` reads it: integers of any size, NaN, lone surrogates, broken UTF-8. The
values are scanned by the standard library's C scanner; only the outermost object is walked here.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.fold.readable import Marker
from store.body import Body, Piece

_space = re.compile(r"[ \t\n\r]*").match
_scan_once = json.scanner.make_scanner(json.JSONDecoder())  # type: ignore[attr-defined]
_SUSPECTS = ("\\u0000", "\\ud", "\\uD", "NaN", "Infinity")  # escapes and words that Postgres may refuse


@dataclass(frozen=True, slots=True)
class _Value:
    """A value and its place in the text; of a list of messages also its items."""

    start: int
    end: int
    value: Any
    items: "tuple[_Value, ...]" = ()


def read(raw: bytes) -> tuple[Mapping[str, Any], Body]:
    """The body's fields (none where the bytes are no JSON object) and its pieces."""
    text, is_utf8 = _decoded(raw)
    try:
        fields = dict(_fields(text))
    except (ValueError, RecursionError):
        return {}, Body(Piece(raw))
    suspect = not is_utf8 or any(word in text for word in _SUSPECTS)
    return {name: found.value for name, found in fields.items()}, _cut(text, fields, suspect)


def _decoded(raw: bytes) -> tuple[str, bool]:
    try:
        return raw.decode(), True
    except UnicodeDecodeError:
        return raw.decode("utf-8", "surrogateescape"), False


def _cut(text: str, fields: Mapping[str, _Value], suspect: bool) -> Body:
    """`suspect`: something in it may be unreadable for Postgres."""
    messages, tools = fields.get("messages"), fields.get("tools")
    said = None
    if messages is not None and isinstance(messages.value, list):
        said = tuple(_piece(text, item, suspect) for item in messages.items)
    joints = {text[one.end : two.start] for one, two in _pairs(messages)}
    cuts: list[tuple[int, int, str]] = []
    if messages is not None and said and len(joints) <= 1:
        cuts.append((messages.items[0].start, messages.items[-1].end, "messages"))
    if tools is not None and tools.value is not None:
        cuts.append((tools.start, tools.end, "tools"))
    rest, places = _without(text, sorted(cuts))
    is_cut = "messages" in places
    return Body(
        rest=Piece(rest),
        messages=said,
        messages_at=places.get("messages"),
        joint=_bytes("".join(joints)) if is_cut else None,
        tools=_piece(text, tools, suspect) if tools is not None and "tools" in places else None,
        tools_at=places.get("tools"),
    )


def _pairs(messages: _Value | None) -> Iterator[tuple[_Value, _Value]]:
    if messages is not None:
        yield from zip(messages.items, messages.items[1:], strict=False)


def _without(text: str, cuts: list[tuple[int, int, str]]) -> tuple[bytes, dict[str, int]]:
    """The text without the cuts, and the offset that each had."""
    rest, places, last = b"", {}, 0
    for start, end, name in cuts:
        rest += _bytes(text[last:start])
        places[name] = len(rest)
        last = end
    return rest + _bytes(text[last:]), places


def _piece(text: str, found: _Value, suspect: bool) -> Piece:
    body = _bytes(text[found.start : found.end])
    if suspect:
        mark = Marker()
        shown = mark.json(found.value)
        if mark.altered:
            return Piece(body, json.dumps(shown, ensure_ascii=False))
    message = found.value
    is_answer = isinstance(message, dict) and message.get("role") == "assistant"
    said = message.get("content") if is_answer else None
    return Piece(body, said=said if isinstance(said, str) else None)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _fields(text: str) -> Iterator[tuple[str, _Value]]:
    """The outermost object's fields. Raises ValueError where the text is no object."""
    at = _expect(text, "{", 1 if text.startswith("\ufeff") else 0)
    if text.startswith("}", at):
        return _end(text, at + 1)
    while True:
        name = _scan(text, at)
        if not isinstance(name.value, str):
            raise ValueError("a field has no name")  # noqa: TRY004 (it is the text that is wrong)
        at = _expect(text, ":", name.end)
        is_list = name.value == "messages" and text.startswith("[", at)
        found = _items(text, at) if is_list else _scan(text, at)
        yield name.value, found
        at = _skip(text, found.end)
        if text.startswith("}", at):
            return _end(text, at + 1)
        at = _expect(text, ",", at)


def _items(text: str, start: int) -> _Value:
    """A list with the places of its items."""
    items: list[_Value] = []
    at = _skip(text, start + 1)
    if not text.startswith("]", at):
        while True:
            items.append(_scan(text, at))
            at = _skip(text, items[-1].end)
            if text.startswith("]", at):
                break
            at = _expect(text, ",", at)
    return _Value(start, at + 1, [item.value for item in items], tuple(items))


def _scan(text: str, at: int) -> _Value:
    try:
        value, end = _scan_once(text, at)
    except StopIteration:
        raise ValueError(f"no value at {at}") from None
    return _Value(at, end, value)


def _expect(text: str, sign: str, at: int) -> int:
    """The place of what follows the sign."""
    at = _skip(text, at)
    if not text.startswith(sign, at):
        raise ValueError(f"no {sign} at {at}")
    return _skip(text, at + 1)


def _end(text: str, at: int) -> None:
    if _skip(text, at) != len(text):
        raise ValueError("more follows the object")


def _skip(text: str, at: int) -> int:
    found = _space(text, at)
    return found.end() if found is not None else at
