"""Collects one choice of a reply, from one message or from many deltas."""

from collections.abc import Iterable
from typing import Any

from gateway.fold import stated
from gateway.fold.answer import Answer
from gateway.fold.tool_calls import ToolCalls

Ids = tuple[int, ...]
_REASONING = (
    "reasoning_content",
    "reasoning",
)  # two names are in use; a server that sends both repeats itself


class Choice:
    """Mutable while the reply is folded; `finish` gives the frozen answer."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._texts: dict[str, list[str]] = {"text": [], "reasoning": [], "refusal": []}
        self._calls = ToolCalls()
        self._finish_reason: str | None = None
        self._matched: str | int | None = None
        self._listed: list[float | None] = []  # log-probabilities as chat entries, piece by piece
        self._detailed: list[tuple[Any, Any]] = []  # (log-probability, id) of meta_info
        self._ids: list[int] = []
        self._prompt_ids: Ids | None = None
        self._version: tuple[int, int] | None = None

    def add(self, choice: dict[str, Any]) -> None:
        """Takes a choice object of a chunk or of a body. What is missing or of another type adds nothing."""
        for part in (choice.get("delta"), choice.get("message")):
            if isinstance(part, dict):
                self._add_message(part)
        self._add_text("text", choice.get("text"))  # /v1/completions
        self._add_logprobs(choice.get("logprobs"))
        self._add_meta(choice.get("meta_info"))
        self._ids += ids(choice.get("response_token_ids")) or ids(choice.get("token_ids")) or ()
        self._prompt_ids = ids(choice.get("prompt_token_ids")) or self._prompt_ids
        reason = choice.get("finish_reason")
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
        detailed_ids = ids([token for _, token in self._detailed])
        return Answer(
            index=self._index,
            text=self._joined("text"),
            reasoning=self._joined("reasoning"),
            refusal=self._joined("refusal"),
            tool_calls=self._calls.finish(),
            finish_reason=self._finish_reason,
            matched_stop=self._matched,
            prompt_ids=prompt_ids or self._prompt_ids,
            response_ids=response_ids if response_ids is not None else tuple(self._ids) or detailed_ids,
            logprobs=self._logprobs(),
            version=self._version or version,
        )

    def _add_message(self, message: dict[str, Any]) -> None:
        self._add_text("text", message.get("content"))
        spoken = (message[name] for name in _REASONING if isinstance(message.get(name), str))
        self._add_text("reasoning", next(spoken, None))
        self._add_text("refusal", message.get("refusal"))
        self._calls.add(message.get("tool_calls"))
        self._calls.add_legacy(message.get("function_call"))

    def _add_text(self, kind: str, piece: Any) -> None:
        if isinstance(piece, str):
            self._texts[kind].append(piece)

    def _add_logprobs(self, logprobs: Any) -> None:
        if not isinstance(logprobs, dict):
            return
        entries = logprobs.get("content")
        if isinstance(entries, list):
            self._listed += [_number(entry.get("logprob")) for entry in entries if isinstance(entry, dict)]
        elif isinstance(logprobs.get("token_logprobs"), list):
            self._listed += [_number(value) for value in logprobs["token_logprobs"]]

    def _add_meta(self, meta: Any) -> None:
        self._version = stated.of_meta_info(meta) or self._version
        entries = meta.get("output_token_logprobs") if isinstance(meta, dict) else None
        if isinstance(entries, list):
            self._detailed += [
                (entry[0], entry[1]) for entry in entries if isinstance(entry, list) and len(entry) > 1
            ]

    def _logprobs(self) -> tuple[float | None, ...] | None:
        # meta_info has an entry for every token; the chat form loses those without text.
        values = [_number(value) for value, _ in self._detailed] or self._listed
        return tuple(values) or None

    def _joined(self, kind: str) -> str | None:
        pieces = self._texts[kind]
        return "".join(pieces) if pieces else None


def ids(values: Any) -> Ids | None:
    """A list of token ids; None unless every entry is a number that int4 holds."""
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | dict):
        return None
    tokens = tuple(values)
    return tokens if tokens and all(type(token) is int and 0 <= token < 2**31 for token in tokens) else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
