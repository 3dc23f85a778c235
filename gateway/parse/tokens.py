"""Puts log-probabilities beside their token ids, or says why that is impossible. Pure.

Nothing is guessed: another number of values than of ids has no alignment, and a value that no
log-probability can have is missing (NaN here, NULL in the table). Values are looked at as they are stored.

Whether a reply has as many token ids as it says: what was lost or came twice shows in no text. Pure.

A usage counts a prompt once and sums up all answers, stop tokens and thoughts included; meta_info counts each
choice by itself. What a reply does not state contradicts nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from gateway.parse.reply import Answer, Reply

IMPOSSIBLE = -9999.0  # what engines write for minus infinity
LARGEST = 1e-3  # above 0 by rounding only


@dataclass(frozen=True, slots=True)
class Capture:
    """The sampled tokens of one answer. `reason` is of `states.REASONS`; None where all is there."""

    response_ids: npt.NDArray[np.int32] | None  # [tokens]
    logprobs: npt.NDArray[np.float32] | None  # [tokens], nats; NaN: missing
    kind: Literal["sampled", "none"]
    reason: str | None


def align(answer: Answer, completion_tokens: int | None = None) -> Capture:
    """`completion_tokens` is the usage's count, where it is of this answer alone."""
    if answer.response_ids is None:
        given = len(answer.logprobs) if answer.logprobs is not None else None
        is_short = given is not None and completion_tokens is not None and given != completion_tokens
        return Capture(None, None, "none", "logprob_count_mismatch" if is_short else "no_ids")
    response_ids = np.array(answer.response_ids, dtype=np.int32)
    if not len(response_ids):
        return Capture(response_ids, None, "none", "empty_answer")
    if answer.logprobs is None:
        return Capture(response_ids, None, "none", "no_logprobs")
    if len(answer.logprobs) != len(response_ids):
        return Capture(response_ids, None, "none", "logprob_count_mismatch")
    logprobs, reason = _possible(answer.logprobs)
    return Capture(response_ids, logprobs, "sampled", reason)


def _possible(given: Sequence[float | None]) -> tuple[npt.NDArray[np.float32], str | None]:
    """The values as they are stored, NaN for those that cannot be, and the reason where there are any."""
    with np.errstate(over="ignore"):
        logprobs = np.array(given, dtype=np.float32)  # None becomes NaN, 1e308 infinite
    if logprobs.min() > IMPOSSIBLE and logprobs.max() <= LARGEST:  # False where there is a NaN
        return logprobs, None
    too_large = np.isfinite(logprobs) & (logprobs > LARGEST)
    missing = ~np.isfinite(logprobs) | (logprobs <= IMPOSSIBLE)
    logprobs[missing | too_large] = np.nan
    return logprobs, "logprob_not_finite" if missing.any() else "logprob_impossible"


#: Tool-call parser → ids at a prompt's end that SGLang leaves out of the count (`_reported_prompt_tokens`).
UNCOUNTED = {"kimi_k3": 3}


def contradicts(reply: Reply, parser: str | None = None) -> bool:
    """Whether ids and counts disagree. Of several answers it is not known which one is wrong.

    `parser`: the engine's tool-call parser, None where it is unknown.
    """
    usage = reply.usage or {}
    uncounted = UNCOUNTED.get(parser or "", 0)
    return _sum_differs(reply, usage.get("completion_tokens")) or any(
        _differs(answer, usage.get("prompt_tokens"), uncounted) for answer in reply.answers
    )


def _sum_differs(reply: Reply, total: object) -> bool:
    known = [len(answer.response_ids) for answer in reply.answers if answer.response_ids is not None]
    return type(total) is int and bool(known) and total != sum(known)


def _differs(answer: Answer, prompt_tokens: object, uncounted: int) -> bool:
    if answer.response_ids is not None and answer.token_count not in (None, len(answer.response_ids)):
        return True
    if answer.prompt_ids is None:
        return False
    length = len(answer.prompt_ids)
    stated = [count for count in (answer.prompt_count, prompt_tokens) if type(count) is int]
    return any(count not in (length, length - uncounted) for count in stated)
