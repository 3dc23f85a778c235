"""Takes out of an engine's reply what Dukou asked for and the client did not. Sans I/O, on bytes.

Everything else passes byte for byte. A key such as `"logprobs":{` is found by searching: inside a JSON
string its quotes would be escaped. Cutting a reply elsewhere gives the same bytes (hypothesis holds it).
"""

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import orjson

from gateway.relay import errors

_EVENT_END = re.compile(rb"\n\r?\n")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_LOGPROBS = re.compile(rb'("logprobs"\s*:\s*)(?=\{)')
_EMPTY_DELTA = re.compile(rb'"delta"\s*:\s*\{\s*(?:"\w+"\s*:\s*null\s*,?\s*)*\}')
_FINISHED = re.compile(rb'"finish_reason"\s*:\s*"')
_MODEL = re.compile(rb'("model"\s*:\s*)"(?:[^"\\]|\\.)*"', re.DOTALL)
_DATA_LINE = re.compile(rb"^data:[ ]?(.*?)\r?$", re.MULTILINE)
_SPACE = b" \t\r\n"
_DEEPEST = 8  # levels of brackets that one match of _VALUE spans


def _value(levels: int) -> bytes:
    """A pattern of whole JSON objects and arrays; possessive throughout, so that it never backtracks."""
    string = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
    flat = rb'[^\[\]{}"]*+(?:' + string + rb'[^\[\]{}"]*+)*+'
    pattern = rb"[\[{]" + flat + rb"[\]}]"
    for _ in range(levels - 1):
        pattern = rb"[\[{]" + flat + rb"(?:" + pattern + flat + rb")*+[\]}]"
    return pattern


#: Six times faster than looking at every token.
_VALUE = re.compile(_value(_DEEPEST), re.DOTALL)
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Cuts:
    """What to take out."""

    logprobs: bool = False
    usage: bool = False
    keys: tuple[str, ...] = ()  # keys that go with their values, at any depth
    sglext: frozenset[str] = frozenset()  # fields of sglext
    model: str | None = None  # put in the place of the engine's own model name


def _value_end(data: bytes, start: int) -> int:
    """Where the object or array that begins at `start` ends; len(data) where it does not."""
    if whole := _VALUE.match(data, start):
        return whole.end()
    depth = 0
    for match in _TOKEN.finditer(data, start):
        char = data[match.start()]
        if char in b"[{":
            depth += 1
        elif char in b"]}":
            depth -= 1
            if not depth:
                return match.end()
    return len(data)


def null_logprobs(data: bytes) -> bytes:
    """Every `"logprobs":{…}` becomes `"logprobs":null`."""
    parts, at = [], 0
    while match := _LOGPROBS.search(data, at):
        parts += [data[at : match.end()], b"null"]
        at = _value_end(data, match.end())
    return b"".join((*parts, data[at:])) if parts else data


def remove_keys(data: bytes, keys: tuple[str, ...]) -> bytes:
    """Every array- or object-valued key of `keys` goes, with its value and one comma beside it."""
    parts, at = [], 0
    pattern = _pattern_of(keys)
    while match := pattern.search(data, at):
        before = data[at : match.start()].rstrip(_SPACE)
        at = _value_end(data, match.end())
        if before.endswith(b","):
            before = before[:-1]
        else:  # it was the first of its object: the comma behind it goes instead
            at += len(data[at : at + 64]) - len(data[at : at + 64].lstrip(_SPACE + b","))
        parts.append(before)
    return b"".join((*parts, data[at:])) if parts else data


@cache
def _pattern_of(keys: tuple[str, ...]) -> re.Pattern[bytes]:
    names = b"|".join(key.encode() for key in keys)
    return re.compile(rb'"(?:' + names + rb')"\s*:\s*(?=[\[{])')


def _shown_model(data: bytes, model: str | None) -> bytes:
    if model is None:
        return data
    name = orjson.dumps(model)
    return _MODEL.sub(lambda match: match[1] + name, data, count=1)


def filter_body(body: bytes, cuts: Cuts) -> bytes:
    """A whole JSON reply as the client gets it."""
    if cuts.logprobs:  # the longest of all: it goes first
        body = null_logprobs(body)
    if cuts.keys:
        body = remove_keys(body, cuts.keys)
    return _shown_model(body, cuts.model)


class StreamFilter:
    """Filters an SSE stream. `[DONE]`, and an error with all that follows it, are held back.

    `feed` returns what can go to the client. `done`, `finished` (every one of `choices` has its
    finish_reason), `error` and `ids_seen` tell the caller how the stream stands.
    """

    def __init__(self, cuts: Cuts, choices: int = 1) -> None:
        self.done = False
        self.finished = False
        self._unfinished = choices
        self.ids_seen = False
        self.error: errors.GatewayError | None = None
        self._cuts = cuts
        self._pending = bytearray()
        self._scanned = 0

    def feed(self, data: bytes) -> bytes:
        """The client's share of the next bytes of the stream, whole events only."""
        pending = self._pending
        pending += data
        out, at, scan = [], 0, self._scanned
        while not self._closed and (match := _EVENT_END.search(pending, scan)):
            out.append(self._event(bytes(pending[at : match.end()])))
            at = scan = match.end()
        del pending[:at]
        self._scanned = max(0, len(pending) - 2)
        return b"".join(out)

    def end(self) -> bytes:
        """The stream has ended: a last event that lacks its blank line still counts, half of one does not."""
        rest, self._pending = bytes(self._pending).rstrip(b"\r\n"), bytearray()
        if self._closed or not rest:
            return b""
        data = _data_of(rest)
        if data != b"[DONE]" and _parse(data) is None:
            return b""
        return self._event(rest + b"\n\n")

    @property
    def _closed(self) -> bool:
        return self.done or self.error is not None

    def _event(self, event: bytes) -> bytes:
        plain = event.startswith(b"data: {")
        if plain and (b'"delta"' in event or b'"text"' in event) and b'"error"' not in event:
            return self._chunk(event)
        data = _data_of(event)
        if not data.strip():
            return b""  # a comment, or an empty event, on which the openai client would fail
        if data.strip() == b"[DONE]":
            self.done = True
            return b""
        payload = _parse(data)
        if payload is None:
            return event
        if payload.get("error") or payload.get("object") == "error":
            self.error = errors.from_upstream(errors.status_in(payload), payload)
            return b""
        return self._chunk(event) if payload.get("choices") else self._bare(event, payload)

    def _chunk(self, event: bytes) -> bytes:
        """An event with choices."""
        cuts = self._cuts
        if not self.finished and b'"finish_reason"' in event:
            self._unfinished -= len(_FINISHED.findall(event))
            self.finished = self._unfinished <= 0
        if cuts.keys:
            shorter = remove_keys(event, cuts.keys)
            self.ids_seen = self.ids_seen or shorter is not event
            event = shorter
        if cuts.logprobs:
            shorter = null_logprobs(event)
            # The engine flushes entries that no text carried: without them the event says nothing.
            if shorter is not event and _says_nothing(shorter):
                return b""
            event = shorter
        return _shown_model(event, cuts.model)

    def _bare(self, event: bytes, payload: dict[str, Any]) -> bytes:
        """An event without choices: sglext, usage, or something unknown, which passes."""
        cuts = self._cuts
        extension = payload.get("sglext")
        if isinstance(extension, dict):
            self.ids_seen = self.ids_seen or extension.get("output_ids") is not None
            kept = {k: v for k, v in extension.items() if k not in cuts.sglext and v is not None}
            if not kept and cuts.sglext:
                return b""
            if cuts.sglext:
                event = b"data: " + orjson.dumps(payload | {"sglext": kept}) + b"\n\n"
        elif cuts.usage and payload.get("usage"):
            return b""
        return _shown_model(event, cuts.model)


def _data_of(event: bytes) -> bytes:
    return b"\n".join(_DATA_LINE.findall(event))


def _parse(data: bytes) -> dict[str, Any] | None:
    try:
        payload = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return payload if isinstance(payload, dict) else None


def _says_nothing(event: bytes) -> bool:
    return (
        event.count(b'"delta"') == 1
        and _EMPTY_DELTA.search(event) is not None
        and _FINISHED.search(event) is None
        and b'"usage":{' not in event
    )
