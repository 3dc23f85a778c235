"""Folds one choice of a reply out of its parts: one message, or many deltas. Pure.

Each thing is looked for in all parts at once: a stream has a part for every token, and most say little.
What is missing or of another type adds nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.fold import stated
from gateway.fold.answer import Answer
from gateway.fold.tool_calls import ToolCalls

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


def fold(index: int, parts: Sequence[Part], beside: Beside, *, texts: bool = False) -> Answer:
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
    versions = [found for meta in metas if (found := stated.of_meta_info(meta)) is not None]
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
