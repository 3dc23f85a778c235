"""Reads a request's body once: what it says, and where its messages and tools lie. Pure.

JSON is read as `lenient.loads_exact` reads it: integers of any size, NaN, lone surrogates, broken UTF-8. The
values are scanned by the standard library's C scanner; only the outermost object is walked here.

What `store: false` in a request does, by `privacy.store_false`. Pure; worker and drainer both ask here.

Only JSON's `false` asks for anything: null, 0 and "false" do not. A body that is no object says nothing.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from dukou.settings.serving import StoreFalse
from dukou.store.body import Body, Piece
from gateway.parse.text import Marker

Span = tuple[int, int]

_SPACE = " \t\n\r"
_space = re.compile(r"[ \t\n\r]*").match
_scan_once = json.scanner.make_scanner(json.JSONDecoder())  # type: ignore[attr-defined]
_SUSPECTS = ("\\u0000", "\\ud", "\\uD", "NaN", "Infinity")  # escapes and words that Postgres may refuse


@dataclass(slots=True)
class _Read:
    """A body's fields, and the places of those that are cut out."""

    fields: dict[str, Any] = field(default_factory=dict)
    messages: Sequence[Span] = ()  # one by one, where they are a list
    tools: Span | None = None


def read(raw: bytes) -> tuple[Mapping[str, Any], Body]:
    """The body's fields (none where the bytes are no JSON object) and its pieces."""
    text, is_utf8 = _decoded(raw)
    try:
        found = _object(text)
    except (ValueError, IndexError, RecursionError):
        return {}, Body(Piece(raw))
    suspect = not is_utf8 or any(word in text for word in _SUSPECTS)
    return found.fields, _cut(text, found, suspect)


def _decoded(raw: bytes) -> tuple[str, bool]:
    try:
        return raw.decode(), True
    except UnicodeDecodeError:
        return raw.decode("utf-8", "surrogateescape"), False


def _cut(text: str, found: _Read, suspect: bool) -> Body:
    """`suspect`: something in it may be unreadable for Postgres."""
    messages, tools = found.fields.get("messages"), found.fields.get("tools")
    said = None
    if isinstance(messages, list):
        said = tuple([_piece(text, *each, suspect) for each in zip(found.messages, messages, strict=True)])
    joints = {text[one[1] : two[0]] for one, two in pairwise(found.messages)}
    cuts: list[tuple[int, int, str]] = []
    if found.messages and len(joints) <= 1:
        cuts.append((found.messages[0][0], found.messages[-1][1], "messages"))
    if found.tools is not None and tools is not None:
        cuts.append((*found.tools, "tools"))
    rest, places = _without(text, sorted(cuts))
    is_cut = "messages" in places
    return Body(
        rest=Piece(rest),
        messages=said,
        messages_at=places.get("messages"),
        joint=_bytes("".join(joints)) if is_cut else None,
        tools=_piece(text, found.tools, tools, suspect) if found.tools and "tools" in places else None,
        tools_at=places.get("tools"),
    )


def _without(text: str, cuts: list[tuple[int, int, str]]) -> tuple[bytes, dict[str, int]]:
    """The text without the cuts, and the offset that each had."""
    rest, places, last = b"", {}, 0
    for start, end, name in cuts:
        rest += _bytes(text[last:start])
        places[name] = len(rest)
        last = end
    return rest + _bytes(text[last:]), places


def _piece(text: str, span: Span, value: Any, suspect: bool) -> Piece:
    body = _bytes(text[span[0] : span[1]])
    if suspect:
        mark = Marker()
        shown = mark.json(value)
        if mark.altered:
            return Piece(body, json.dumps(shown, ensure_ascii=False))
    is_answer = isinstance(value, dict) and value.get("role") == "assistant"
    said = value.get("content") if is_answer else None
    return Piece(body, said=said if isinstance(said, str) else None)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _object(text: str) -> _Read:
    """The outermost object. Raises ValueError or IndexError where the text is none, or ends in it."""
    found = _Read()
    at = _after("{", text, 1 if text.startswith("\ufeff") else 0)
    sign = text[at]
    while sign != "}":
        name, at = _scan(text, at)
        if not isinstance(name, str):
            raise ValueError("a field has no name")  # noqa: TRY004 (it is the text that is wrong)
        start = _after(":", text, at)
        if name == "messages":
            value, found.messages, at = _items(text, start)
        else:
            value, at = _scan(text, start)
        if name == "tools":
            found.tools = (start, at)
        found.fields[name] = value
        at = _skip(text, at)
        sign = text[at]
        if sign != "}":
            at = _after(",", text, at)
    if _skip(text, at + 1) != len(text):
        raise ValueError("more follows the object")
    return found


def _items(text: str, start: int) -> tuple[Any, Sequence[Span], int]:
    """The value at `start`, the places of its items where it is a list, and its end."""
    if text[start] != "[":
        value, end = _scan(text, start)
        return value, (), end
    values: list[Any] = []
    places: list[Span] = []
    at = _skip(text, start + 1)
    sign = text[at]
    while sign != "]":
        value, end = _scan(text, at)
        values.append(value)
        places.append((at, end))
        at = _skip(text, end)
        sign = text[at]
        if sign != "]":
            at = _after(",", text, at)
    return values, places, at + 1


def _scan(text: str, at: int) -> tuple[Any, int]:
    """The value that begins here, and its end."""
    try:
        found: tuple[Any, int] = _scan_once(text, at)
    except StopIteration:
        raise ValueError(f"no value at {at}") from None
    return found


def _after(sign: str, text: str, at: int) -> int:
    """The place of what follows the sign."""
    at = _skip(text, at)
    if text[at] != sign:
        raise ValueError(f"no {sign} at {at}")
    return _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    if text[at : at + 1] not in _SPACE:  # nearly always
        return at
    found = _space(text, at)
    return found.end() if found is not None else at


def forbids_recording(body: Mapping[str, Any], setting: StoreFalse) -> bool:
    """Whether nothing of the exchange may be kept, whatever its endpoint."""
    return setting == "no_record" and body.get("store") is False


def forbids_training(body: Mapping[str, Any], setting: StoreFalse) -> bool:
    """Whether a chat turn may not be trained on; turns of other endpoints never are."""
    return setting != "ignore" and body.get("store") is False
