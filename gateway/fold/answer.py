"""What an upstream answered, folded: the same for a stream and for a JSON body."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
