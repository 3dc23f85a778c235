"""Folds the bytes that an upstream sent, a stream or a JSON body, into what it answered. Pure.

Works on the raw reply: a client library that re-models replies loses fields that it does not know.

What an upstream answered, folded: the same for a stream and for a JSON body.

Folds one choice of a reply out of its parts: one message, or many deltas. Pure.

Each thing is looked for in all parts at once: a stream has a part for every token, and most say little.
What is missing or of another type adds nothing.

Which policy version a reply says that it comes from.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from gateway.parse import stream, text
from gateway.parse.stream import ToolCalls


@dataclass(frozen=True, slots=True)
class Answer:
    """One choice. None means that the upstream did not say; nothing is derived from text."""

    index: int
    text: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    finish_reason: str | None = None
    matched_stop: str | int | None = None
    prompt_ids: tuple[int, ...] | None = None
    response_ids: tuple[int, ...] | None = None
    logprobs: tuple[float | None, ...] | None = None  # nats, one a sampled token; None: said to be null
    token_texts: tuple[str, ...] | None = None  # of the sampled tokens; only where the caller wants them
    prompt_count: int | None = None  # how many tokens the reply says that this choice's prompt and answer
    token_count: int | None = None  # have, where it says so of each choice
    version: tuple[int, int] | None = None  # oldest and newest policy version, where the reply states it

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.reasoning or self.refusal or self.tool_calls)


@dataclass(frozen=True, slots=True)
class Reply:
    answers: tuple[Answer, ...] = ()
    usage: Mapping[str, Any] | None = None
    error: str | None = None  # an error object, an unreadable body, a broken event
    done: bool = False  # the stream's own end marker, or a whole JSON body
    model: str | None = None


#: An adapter's name carries its version: the engine's own label stays as it is when adapters change.
_ADAPTER = re.compile(r"-v(\d{1,9})$")


def adapter_version(name: str) -> tuple[int, int] | None:
    """The version in an adapter's name, like 3 in `default-v3`."""
    match = _ADAPTER.search(name)
    return (int(match[1]), int(match[1])) if match else None


def span(labels: Iterable[Any]) -> tuple[int, int] | None:
    """Oldest and newest of the labels; None where there is none, or one that is no version number.

    A label like "default" is not version 0: it is unknown.
    """
    known: list[int] = []
    for label in labels:
        number = _version_number(label)
        if number is None:
            return None
        known.append(number)
    return (min(known), max(known)) if known else None


def of_meta_info(meta: Any) -> tuple[int, int] | None:
    """From a choice's `meta_info`: its spans, else its one label."""
    if not isinstance(meta, dict):
        return None
    spans = meta.get("weight_versions")
    if isinstance(spans, list) and spans:
        return span(part.get("version") if isinstance(part, dict) else part for part in spans)
    return of_label(meta)


def of_label(holder: Any) -> tuple[int, int] | None:
    """From any object with a `weight_version`."""
    if not isinstance(holder, dict) or holder.get("weight_version") is None:
        return None
    number = _version_number(holder["weight_version"])
    return None if number is None else (number, number)


def _version_number(label: Any) -> int | None:
    if isinstance(label, int) and not isinstance(label, bool) and 0 <= label < 2**31:
        return label
    is_number = isinstance(label, str) and label.isascii() and label.isdigit() and len(label) <= 9
    return int(label) if is_number else None


Ids = tuple[int, ...]
Part = dict[str, Any]
# Two names are in use; a server that sends both repeats itself.
_REASONING = ("reasoning_content", "reasoning")
# What a stream's parts say: nothing else has to be looked for there.
_USUAL_PART = frozenset({"index", "delta", "logprobs", "finish_reason", "matched_stop"})
_USUAL_MESSAGE = frozenset({"role", "content"})


@dataclass(frozen=True, slots=True)
class Beside:
    """What the reply says of a choice outside its choices."""

    prompt_ids: Ids | None
    response_ids: Ids | None
    version: tuple[int, int] | None


def fold_choice(index: int, parts: Sequence[Part], beside: Beside, *, texts: bool = False) -> Answer:
    """The answer of the choice objects with this index, in their order; with `texts`, each token's too."""
    unusual = [part for part in parts if not _USUAL_PART.issuperset(part)]
    messages = [found for part in parts if isinstance(found := part.get("delta"), dict)]
    messages += [found for part in unusual if isinstance(found := part.get("message"), dict)]
    more = [message for message in messages if not _USUAL_MESSAGE.issuperset(message)]
    said = [text for message in messages if isinstance(text := message.get("content"), str)]
    said += [text for part in unusual if isinstance(text := part.get("text"), str)]  # /v1/completions
    metas = [meta for part in unusual if isinstance(meta := part.get("meta_info"), dict)]
    detailed = [each for meta in metas for each in _entries(meta)]
    finish_reason, matched = _end([part for part in parts if part.get("finish_reason") is not None])
    return Answer(
        index=index,
        text=_joined(said),
        reasoning=_joined([text for message in more for text in _thoughts(message)]),
        refusal=_joined([text for message in more if isinstance(text := message.get("refusal"), str)]),
        tool_calls=_tool_calls(more),
        finish_reason=finish_reason,
        matched_stop=matched,
        prompt_ids=beside.prompt_ids or _prompt_ids(unusual),
        response_ids=_response_ids(unusual, detailed) if beside.response_ids is None else beside.response_ids,
        # meta_info has an entry for every token; the chat form loses those without text.
        logprobs=_numbers([entry[0] for entry in detailed] or _listed(parts)),
        token_texts=_token_texts(parts, detailed) if texts else None,
        prompt_count=_count(metas, "prompt_tokens"),
        token_count=_count(metas, "completion_tokens"),
        version=_version(metas) or beside.version,
    )


def ids(values: Any) -> Ids | None:
    """A list of token ids; None unless every entry is a number that int4 holds."""
    if not isinstance(values, list | tuple) or set(map(type, values)) != {int}:
        return None
    return tuple(values) if min(values) >= 0 and max(values) < 2**31 else None


def _entries(meta: Part) -> list[list[Any]]:
    """meta_info's [log-probability, id, text] of each token."""
    entries = meta.get("output_token_logprobs")
    if not isinstance(entries, list):
        return []
    return [each for each in entries if type(each) is list and len(each) > 1]


def _listed(parts: Sequence[Part]) -> list[Any]:
    """Log-probabilities, of the chat form or else of the completions form."""
    said = [found for part in parts if isinstance(found := part.get("logprobs"), dict)]
    entries = _content(said)
    if entries:
        return [entry.get("logprob") for entry in entries if isinstance(entry, dict)]
    return [value for one in said if isinstance(found := one.get("token_logprobs"), list) for value in found]


def _content(said: Sequence[Part]) -> list[Any]:
    """The entries of the chat form's log-probabilities, one a token."""
    return [entry for one in said if isinstance(found := one.get("content"), list) for entry in found]


def _token_texts(parts: Sequence[Part], detailed: Sequence[list[Any]]) -> tuple[str, ...] | None:
    """The text of each token, of the chat form or else of meta_info; None where one has none."""
    entries = _content([found for part in parts if isinstance(found := part.get("logprobs"), dict)])
    texts: list[Any] = [entry.get("token") if isinstance(entry, dict) else None for entry in entries]
    texts = texts or [entry[2] if len(entry) > 2 else None for entry in detailed]
    return tuple(texts) if set(map(type, texts)) == {str} else None


def _response_ids(unusual: Sequence[Part], detailed: Sequence[list[Any]]) -> Ids | None:
    """The ids of all parts; None where a part has other things among them, which are no part of an answer."""
    lists = [part.get("response_token_ids") or part.get("token_ids") for part in unusual]
    given = [token for found in lists if isinstance(found, list) for token in found]
    return ids(given or [entry[1] for entry in detailed])


def _count(metas: Sequence[Part], name: str) -> int | None:
    counts = [found for meta in metas if type(found := meta.get(name)) is int]
    return counts[-1] if counts else None


def _prompt_ids(unusual: Sequence[Part]) -> Ids | None:
    lists = [found for part in unusual if (found := ids(part.get("prompt_token_ids")))]
    return lists[-1] if lists else None


def _version(metas: Sequence[Part]) -> tuple[int, int] | None:
    versions = [found for meta in metas if (found := of_meta_info(meta)) is not None]
    return versions[-1] if versions else None


def _end(parts: Sequence[Part]) -> tuple[str | None, str | int | None]:
    """Why the answer ended, and the stop string or token that it matched."""
    said, matched = None, None
    for part in parts:
        reason = part["finish_reason"]
        stops = [part.get("matched_stop", part.get("stop_reason"))]
        if isinstance(reason, dict):  # the engine's native form
            stops.insert(0, reason.get("matched"))
            reason = reason.get("type")
        said = reason if isinstance(reason, str) and reason else said
        for stop in stops:
            matched = stop if type(stop) in (str, int) else matched
    return said, matched


def _thoughts(message: Part) -> list[str]:
    return [found for name in _REASONING if isinstance(found := message.get(name), str)][:1]


def _tool_calls(messages: Sequence[Part]) -> tuple[Part, ...]:
    calls = ToolCalls()
    for message in messages:
        calls.add(message.get("tool_calls"))
        calls.add_legacy(message.get("function_call"))
    return calls.finish()


def _joined(pieces: Sequence[str]) -> str | None:
    return "".join(pieces) if pieces else None


def _numbers(values: Sequence[Any]) -> tuple[float | None, ...] | None:
    """Log-probabilities; None where there is another thing in their place, or nothing at all."""
    if not set(map(type, values)) <= {float}:
        values = [_number(value) for value in values]
    return tuple(values) or None


def _number(value: Any) -> float | None:
    if type(value) is int:  # of any size, and no log-probability has so many digits
        return float(value) if abs(value) < 2**53 else math.copysign(math.inf, value)
    return value if type(value) is float else None


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
        self.version = of_label(payload.get("metadata")) or self.version
        self._add_extension(payload.get("sglext") or payload)

    def _add_extension(self, extension: Any) -> None:
        if not isinstance(extension, dict):
            return
        self.prompt_ids = ids(extension.get("input_ids")) or self.prompt_ids
        self.version = of_label(extension) or self.version
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
        return fold_events(stream.Parser(), [body], texts=texts)
    try:
        payload = text.loads(body)
    except ValueError:
        return Reply(error=f"the reply is no JSON: {_excerpt(body)}")
    return _folded([payload], done=True, texts=texts)


def fold_events(parser: stream.Parser, chunks: Iterable[bytes], *, texts: bool = False) -> Reply:
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
                payload = text.loads_exact(data)
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
    adapter = adapter_version(name) if name else None
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
    return fold_choice(index, parts[index], beside, texts=texts)


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
