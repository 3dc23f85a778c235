"""Folds the bytes that an upstream sent, a stream or a JSON body, into what it answered. Pure.

Works on the raw reply: a client library that re-models replies loses fields that it does not know.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from gateway.fold import choice, lenient, sse, stated
from gateway.fold.answer import Answer, Reply
from gateway.fold.choice import Beside, Ids, Part, ids

_DONE = b"[DONE]"
_USUAL = frozenset({"id", "object", "created", "model", "choices", "system_fingerprint"})  # of most chunks
_EXCERPT = 500  # characters of an unreadable body that its error quotes
_CHOICES = 2**16  # that a reply may have: completions of many prompts have some thousands
_INDEX_LIMIT = 2**31  # what the column holds


@dataclass(slots=True)
class _Outside:
    """What stands beside the choices of bodies and of few chunks."""

    usage: dict[str, Any] | None = None
    error: str | None = None
    prompt_ids: Ids | None = None
    response_ids: dict[int, Ids] = field(default_factory=dict)
    version: tuple[int, int] | None = None

    def add(self, payload: Mapping[str, Any]) -> None:
        self.error = self.error or _error_in(payload)
        if isinstance(payload.get("usage"), dict):
            self.usage = payload["usage"]
        self.prompt_ids = ids(payload.get("prompt_token_ids")) or self.prompt_ids
        self.version = stated.of_label(payload.get("metadata")) or self.version
        self._add_extension(payload.get("sglext") or payload)

    def _add_extension(self, extension: Any) -> None:
        if not isinstance(extension, dict):
            return
        self.prompt_ids = ids(extension.get("input_ids")) or self.prompt_ids
        self.version = stated.of_label(extension) or self.version
        outputs = extension.get("output_ids")
        if isinstance(outputs, list):
            per_choice = outputs if outputs and isinstance(outputs[0], list) else [outputs]
            for index, values in enumerate(per_choice[:_CHOICES]):
                known = ids(values) if values else ()
                if known is not None:
                    self.response_ids[index] = known


def fold(body: bytes, *, texts: bool = False) -> Reply:
    """Folds a whole reply; its first byte shows which of the two forms it has: a stream's is no brace.

    With `texts`, answers have the text of each token too.
    """
    if body.lstrip()[:1] not in (b"{", b"["):
        return fold_events(sse.Parser(), [body], texts=texts)
    try:
        payload = lenient.loads(body)
    except ValueError:
        return Reply(error=f"the reply is no JSON: {_excerpt(body)}")
    return _folded([payload], done=True, texts=texts)


def fold_events(parser: sse.Parser, chunks: Iterable[bytes], *, texts: bool = False) -> Reply:
    """Folds a stream that comes in chunks, cut anywhere."""
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    events += parser.close()
    payloads: list[Any] = []
    done, broken = False, []  # the places of events that are no JSON
    for place, (name, data) in enumerate(events):
        try:
            payload = orjson.loads(data)
        except orjson.JSONDecodeError:
            if data.strip() == _DONE:
                done = True
                continue
            try:
                payload = lenient.loads_exact(data)
            except ValueError:
                broken.append(place)
                continue
        if name == b"error" and isinstance(payload, dict) and "error" not in payload:
            payload = {"error": payload}
        payloads.append(payload)
    # The last event of a stream that was cut is no fault of its own: the missing end tells.
    is_broken = bool(broken) and broken[0] < len(events) - 1
    fault = f"an event is no JSON: {_excerpt(events[broken[0]][1])}" if is_broken else None
    return _folded(payloads, done, fault, texts=texts)


def _folded(payloads: Sequence[Any], done: bool, fault: str | None = None, *, texts: bool) -> Reply:
    """Each thing is looked for in all chunks at once, as in `choice.fold`."""
    objects = [payload for payload in payloads if isinstance(payload, dict)]
    outside = _Outside()
    for payload in objects:
        if not _USUAL.issuperset(payload) or payload.get("object") == "error":
            outside.add(payload)
    parts, misplaced = _parts(objects)
    answers = tuple([_answer(index, parts, outside, texts=texts) for index in sorted(parts)])
    model = next((said for each in reversed(objects) if isinstance(said := each.get("model"), str)), None)
    _, _, name = (model or "").partition(":")  # "<model>:<adapter>"
    adapter = stated.adapter_version(name) if name else None
    if adapter is not None:
        answers = tuple([replace(answer, version=adapter) for answer in answers])
    return Reply(answers, outside.usage, outside.error or fault or misplaced, done, model)


def _parts(objects: Sequence[Mapping[str, Any]]) -> tuple[Mapping[int, list[Part]], str | None]:
    """The choice objects by their index, or by their position where they have none; and what is wrong where
    it is not known whose tokens an object has: then no answer of the reply can be trusted."""
    parts: defaultdict[int, list[Part]] = defaultdict(list)
    misplaced = None
    for payload in objects:
        choices = payload.get("choices")
        if not isinstance(choices, list):
            continue
        for position, part in enumerate(choices):
            if not isinstance(part, dict):
                continue
            index = part.get("index")
            if index is not None and not (type(index) is int and 0 <= index < _INDEX_LIMIT):
                misplaced = "a choice's index is no number that choices have"
            elif index not in parts and len(parts) == _CHOICES:
                misplaced = f"the reply has more than {_CHOICES} choices"
            else:
                parts[position if index is None else index].append(part)
    return parts, misplaced


def _answer(index: int, parts: Mapping[int, list[Part]], outside: _Outside, *, texts: bool) -> Answer:
    # A version outside the choices is about the first one only.
    version = outside.version if index == 0 or len(parts) == 1 else None
    beside = Beside(outside.prompt_ids, outside.response_ids.get(index), version)
    return choice.fold(index, parts[index], beside, texts=texts)


def _error_in(payload: Mapping[str, Any]) -> str | None:
    """The message of an error object, in any of the shapes in use: nested, a plain string, or flat."""
    error = payload.get("error")
    if isinstance(error, dict):
        return str(error.get("message") or error)
    if error:
        return str(error)
    return str(payload.get("message")) if payload.get("object") == "error" else None


def _excerpt(data: bytes) -> str:
    return data[:_EXCERPT].decode("utf-8", "replace")
