"""Removes from an engine's reply what Dukou asked for and the client did not. Pure, on bytes.

Everything else passes byte for byte. A key such as `"logprobs":{` is found by a search of the bytes: inside a
JSON string its quotes would be escaped. The result does not depend on where a stream is split into chunks.
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
_WHITESPACE = b" \t\r\n"
_MAX_DEPTH = 8  # levels of brackets that one match of _VALUE spans


def _value_pattern(levels: int) -> bytes:
    """A pattern for whole JSON objects and arrays; possessive throughout, so that it never backtracks."""
    string = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
    flat = rb'[^\[\]{}"]*+(?:' + string + rb'[^\[\]{}"]*+)*+'
    pattern = rb"[\[{]" + flat + rb"[\]}]"
    for _ in range(levels - 1):
        pattern = rb"[\[{]" + flat + rb"(?:" + pattern + flat + rb")*+[\]}]"
    return pattern


#: A match takes a sixth of the time of counting brackets.
_VALUE = re.compile(_value_pattern(_MAX_DEPTH), re.DOTALL)
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Cuts:
    """What to remove from a reply."""

    logprobs: bool = False  # set to null
    usage: bool = False  # events that hold only usage
    keys: tuple[str, ...] = ()  # removed with their values, at any depth
    sglext: frozenset[str] = frozenset()  # removed from a stream's `sglext`
    model: str | None = None  # replaces the model name that the engine states; None leaves it


def _value_end(data: bytes, start: int) -> int:
    """The end of the object or array that begins at `start`; len(data) where it has none."""
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
    """Replaces every `"logprobs":{…}` by `"logprobs":null`."""
    parts, at = [], 0
    while match := _LOGPROBS.search(data, at):
        parts += [data[at : match.end()], b"null"]
        at = _value_end(data, match.end())
    return b"".join((*parts, data[at:])) if parts else data


def remove_keys(data: bytes, keys: tuple[str, ...]) -> bytes:
    """Removes every key of `keys` that has an array or object, with its value and one adjacent comma."""
    parts, at = [], 0
    pattern = _pattern_of(keys)
    while match := pattern.search(data, at):
        before = data[at : match.start()].rstrip(_WHITESPACE)
        at = _value_end(data, match.end())
        if before.endswith(b","):
            before = before[:-1]
        else:  # it was the first of its object: the comma after it goes instead
            at += len(data[at : at + 64]) - len(data[at : at + 64].lstrip(_WHITESPACE + b","))
        parts.append(before)
    return b"".join((*parts, data[at:])) if parts else data


@cache
def _pattern_of(keys: tuple[str, ...]) -> re.Pattern[bytes]:
    names = b"|".join(key.encode() for key in keys)
    return re.compile(rb'"(?:' + names + rb')"\s*:\s*(?=[\[{])')


def _replace_model(data: bytes, model: str | None) -> bytes:
    if model is None:
        return data
    name = orjson.dumps(model)
    return _MODEL.sub(lambda match: match[1] + name, data, count=1)


def filter_body(body: bytes, cuts: Cuts) -> bytes:
    """A whole JSON reply, filtered for the client."""
    if cuts.logprobs:  # first: the longest part of a reply
        body = null_logprobs(body)
    if cuts.keys:
        body = remove_keys(body, cuts.keys)
    return _replace_model(body, cuts.model)


class StreamFilter:
    """Filters an SSE stream. `[DONE]` is held back, and so is an error with everything after it.

    `feed` returns what can go to the client. The state of the stream: `done` ([DONE] has come), `finished`
    (all `choices` answers have a finish_reason), `error`, and `ids_seen` (token ids have come).
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
        """Takes the next bytes of the stream; returns what the client gets of the complete events."""
        pending = self._pending
        pending += data
        out, at, scan = [], 0, self._scanned
        while not self._is_closed and (match := _EVENT_END.search(pending, scan)):
            out.append(self._filter_event(bytes(pending[at : match.end()])))
            at = scan = match.end()
        del pending[:at]
        self._scanned = max(0, len(pending) - 2)
        return b"".join(out)

    def end(self) -> bytes:
        """Ends the stream; returns what the client gets of a last event without its blank line.

        An event that was cut off is dropped.
        """
        rest, self._pending = bytes(self._pending).rstrip(b"\r\n"), bytearray()
        if self._is_closed or not rest:
            return b""
        data = _data_of(rest)
        if data != b"[DONE]" and _parse(data) is None:
            return b""
        return self._filter_event(rest + b"\n\n")

    @property
    def _is_closed(self) -> bool:
        return self.done or self.error is not None

    def _filter_event(self, event: bytes) -> bytes:
        plain = event.startswith(b"data: {")
        if plain and (b'"delta"' in event or b'"text"' in event) and b'"error"' not in event:
            return self._filter_choices(event)
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
        return self._filter_choices(event) if payload.get("choices") else self._filter_other(event, payload)

    def _filter_choices(self, event: bytes) -> bytes:
        """Filters an event with choices."""
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
            # The engine sends events for log-probabilities alone: without them such an event is empty.
            if shorter is not event and _is_empty(shorter):
                return b""
            event = shorter
        return _replace_model(event, cuts.model)

    def _filter_other(self, event: bytes, payload: dict[str, Any]) -> bytes:
        """Filters an event without choices: sglext, usage, or something unknown, which passes."""
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
        return _replace_model(event, cuts.model)


def _data_of(event: bytes) -> bytes:
    return b"\n".join(_DATA_LINE.findall(event))


def _parse(data: bytes) -> dict[str, Any] | None:
    try:
        payload = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return payload if isinstance(payload, dict) else None


def _is_empty(event: bytes) -> bool:
    return (
        event.count(b'"delta"') == 1
        and _EMPTY_DELTA.search(event) is not None
        and _FINISHED.search(event) is None
        and b'"usage":{' not in event
    )
