"""Collects one choice of a reply, from one message or from many deltas."""

from typing import Any

from gateway.fold import stated
from gateway.fold.answer import Answer
from gateway.fold.tool_calls import ToolCalls

Ids = tuple[int, ...]
# Two names are in use; a server that sends both repeats itself.
_REASONING = ("reasoning_content", "reasoning")
# What a chunk says in most of its many events: nothing else has to be looked for there.
_USUAL_CHOICE = frozenset({"index", "delta", "logprobs", "finish_reason", "matched_stop"})
_USUAL_DELTA = frozenset({"role", "content"})


class Choice:
    """Mutable while the reply is folded; `finish` gives the frozen answer."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._calls = ToolCalls()
        self._finish_reason: str | None = None
        self._matched: str | int | None = None
        self._listed: list[Any] = []  # log-probabilities, or the chat entries that hold them
        self._detailed: list[Any] = []  # meta_info's [log-probability, id, text]
        self._ids: list[int] = []
        self._prompt_ids: Ids | None = None
        self._version: tuple[int, int] | None = None

    def add(self, choice: dict[str, Any]) -> None:
        """Takes a choice object of a chunk or of a body. What is missing or of another type adds nothing."""
        delta, logprobs, reason = choice.get("delta"), choice.get("logprobs"), choice.get("finish_reason")
        if isinstance(delta, dict):
            self._add_message(delta)
        if isinstance(logprobs, dict):
            self._add_logprobs(logprobs)
        if not choice.keys() <= _USUAL_CHOICE:
            self._add_unusual(choice)
        if isinstance(reason, dict):  # the engine's native form
            self._matched = reason.get("matched", self._matched)
            reason = reason.get("type")
        if isinstance(reason, str) and reason:
            self._finish_reason = reason
        matched = choice.get("matched_stop", choice.get("stop_reason"))
        if isinstance(matched, str | int) and not isinstance(matched, bool):
            self._matched = matched

    def finish(
        self, prompt_ids: Ids | None, response_ids: Ids | None, version: tuple[int, int] | None
    ) -> Answer:
        """The arguments are what the reply says outside its choices; `sglext`'s id lists are preferred."""
        detailed = [entry for entry in self._detailed if type(entry) is list and len(entry) > 1]
        if response_ids is None:
            response_ids = tuple(self._ids) or ids([entry[1] for entry in detailed])
        return Answer(
            index=self._index,
            text=_joined(self._text),
            reasoning=_joined(self._reasoning),
            refusal=_joined(self._refusal),
            tool_calls=self._calls.finish(),
            finish_reason=self._finish_reason,
            matched_stop=self._matched,
            prompt_ids=prompt_ids or self._prompt_ids,
            response_ids=response_ids,
            # meta_info has an entry for every token; the chat form loses those without text.
            logprobs=tuple(_numbers([entry[0] for entry in detailed]) or _numbers(self._listed)) or None,
            version=self._version or version,
        )

    def _add_message(self, message: dict[str, Any]) -> None:
        content = message.get("content")
        if isinstance(content, str):
            self._text.append(content)
        if message.keys() <= _USUAL_DELTA:
            return
        spoken = [message[name] for name in _REASONING if isinstance(message.get(name), str)]
        self._reasoning += spoken[:1]
        refusal = message.get("refusal")
        if isinstance(refusal, str):
            self._refusal.append(refusal)
        self._calls.add(message.get("tool_calls"))
        self._calls.add_legacy(message.get("function_call"))

    def _add_unusual(self, choice: dict[str, Any]) -> None:
        """What only bodies, other endpoints and last chunks have."""
        message, text, meta = choice.get("message"), choice.get("text"), choice.get("meta_info")
        if isinstance(message, dict):
            self._add_message(message)
        if isinstance(text, str):  # /v1/completions
            self._text.append(text)
        if isinstance(meta, dict):
            self._version = stated.of_meta_info(meta) or self._version
            entries = meta.get("output_token_logprobs")
            self._detailed += entries if isinstance(entries, list) else []
        self._ids += ids(choice.get("response_token_ids")) or ids(choice.get("token_ids")) or ()
        self._prompt_ids = ids(choice.get("prompt_token_ids")) or self._prompt_ids

    def _add_logprobs(self, logprobs: dict[str, Any]) -> None:
        entries = logprobs.get("content")
        if isinstance(entries, list):
            self._listed += [entry for entry in entries if isinstance(entry, dict)]
        elif isinstance(logprobs.get("token_logprobs"), list):
            self._listed += logprobs["token_logprobs"]


def ids(values: Any) -> Ids | None:
    """A list of token ids; None unless every entry is a number that int4 holds."""
    if not isinstance(values, list | tuple) or set(map(type, values)) != {int}:
        return None
    return tuple(values) if min(values) >= 0 and max(values) < 2**31 else None


def _joined(pieces: list[str]) -> str | None:
    return "".join(pieces) if pieces else None


def _numbers(values: list[Any]) -> list[float | None]:
    """Log-probabilities; None where there is another thing in their place."""
    plain = [value.get("logprob") if type(value) is dict else value for value in values]
    return [value if type(value) is float else _number(value) for value in plain]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
