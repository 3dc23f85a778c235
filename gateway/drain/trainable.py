"""How a turn ended, and whether it may be trained. Pure; reasons are those of `states.REASONS`.

Which tokens the grammar of a tool-call parser had a part in, where the model may call or not. Pure.

A tool with `strict: true` under `tool_choice: auto` is no forced call: the grammar waits for a trigger in the
text. Measured on SGLang 0.5.23 with the parser qwen25 and xgrammar 0.2.7, whose trigger is `<tool_call>`:

- before the trigger no token is masked, and log-probabilities are those of the model;
- the token after `<tool_call`, which may complete the trigger, and all tokens from there to the last of
  `</tool_call>` are masked: log-probabilities are up to 7.4 nats above the model's;
- after it all is free again, until the next trigger.

So an answer of such a parser is free where no call is in it, and one with a call is trained without the
masked tokens. Where a parser was not measured, no answer under strict tools is trained, with a call or
without: one parser puts a grammar over plain text too, others forbid some tokens in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dukou.settings.serving import StoreFalse
from dukou.store import spans
from gateway.drain.sampling import SamplingClass, offered_tools
from gateway.lineage.kinds import CHAT
from gateway.parse.body import forbids_training
from gateway.parse.reply import Answer, Reply
from gateway.parse.tokens import Capture

_WITH_CHOICES = (CHAT, "/v1/completions")
#: Never trained, whatever the settings say. Whether `truncated` is, the learner chooses: the gateway records.
_SAMPLING_REASONS = {
    None: "sampling_unknown",
    "greedy": "sampling_greedy",
    "constrained": "sampling_constrained",
}
#: How an answer may have ended that is trained. Whoever ends one otherwise may have changed it (a filter).
ENDINGS = frozenset({"stop", "length", "tool_calls", "function_call"})


def status(outcome: str, endpoint: str, reply: Reply, answer: Answer | None) -> tuple[str, str | None]:
    """A turn's status, and the error where the reply itself shows one.

    What the relay saw counts; its `ok` is only believed of an answer with a finish reason, for a stream that
    was cut cleanly looks finished, and so does one that ends with an error frame and the end marker.
    """
    if outcome != "ok":
        return outcome, reply.error
    if reply.error is not None:
        return "upstream_error", reply.error
    if endpoint not in _WITH_CHOICES:
        return "ok", None
    if answer is None:
        return "truncated", "the reply holds no answer"
    if answer.finish_reason is None:
        return "truncated", "the answer has no finish reason"
    if answer.finish_reason == "abort":
        return "truncated", "the engine aborted the answer"
    return "ok", None


def untrainable_reason(
    *,
    endpoint: str,
    kind: str,
    body: Mapping[str, Any],
    store_false: StoreFalse,
    status: str,
    finish_reason: str | None,
    capture: Capture | None,
    has_prompt_ids: bool,
    miscounted: bool,
    version: tuple[int, int] | None,
    sampling_class: str | None,
) -> str | None:
    """The first thing that stands against training on a turn; None: nothing does."""
    if endpoint != CHAT:
        return "endpoint"
    if kind == "side":
        return "side"
    if status != "ok":
        return "status"
    if finish_reason not in ENDINGS:
        return "ending"
    if forbids_training(body, store_false):
        return "store_false"
    if capture is None or (capture.reason is None and not has_prompt_ids):
        return "no_ids"
    if capture.reason is not None:
        return capture.reason
    if miscounted:
        return "token_count_mismatch"
    if version is None:
        return "version_unknown"
    return _SAMPLING_REASONS.get(sampling_class)


Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Tags:
    """The text that begins a call, what the grammar has follow it, and the text that ends the call."""

    trigger: str
    opening: str
    closing: str


# The closing tag with the line break before it: inside JSON strings a line break is written otherwise.
_QWEN = Tags("<tool_call>", '\n{"name":"', "}\n</tool_call>")
#: (tool-call parser, grammar backend) → its tags. SGLang calls qwen25 by its newer name, qwen.
MEASURED: Mapping[tuple[str, str], Tags] = {("qwen25", "xgrammar"): _QWEN, ("qwen", "xgrammar"): _QWEN}
#: By SGLang's code, these have a grammar wherever tools are offered, strict or not; the second also without.
WITH_TOOLS = frozenset({"glm47", "inkling", "kimi_k3"})
ALWAYS = frozenset({"beam"})
_SETTLED = (None, "greedy", "constrained")


def wants_texts(body: Mapping[str, Any]) -> bool:
    """Whether the text of each token is needed to say which tokens were masked."""
    return any(map(_is_strict, _choosable(body)))


def decide(
    found: SamplingClass | None,
    body: Mapping[str, Any],
    calling: Mapping[str, Any] | None,
    answer: Answer | None,
) -> tuple[SamplingClass | None, npt.NDArray[np.int32] | None]:
    """The answer's class, and the spans of its tokens that may be trained, where not all of them may.

    `found`: the class by the request's other fields, None where it is unknown. `calling`: what the engine
    that answered says of its tool calls, `{"parser": …, "grammar": …}`; None where it is unknown.
    """
    if found in _SETTLED or answer is None:
        return found, None
    known = calling or {}
    parser, grammar = str(known.get("parser")), str(known.get("grammar"))
    tools = _choosable(body)
    if parser in ALWAYS or (tools and parser in WITH_TOOLS):
        return "constrained", None
    if not any(map(_is_strict, tools)):
        return found, None
    tags = MEASURED.get((parser, grammar))
    mask = None if tags is None else masked(answer, tags)
    if mask is None or mask.all():
        return "constrained", None
    return found, spans.pack(~mask) if mask.any() else None


def masked(answer: Answer, tags: Tags) -> Mask | None:
    """Which of the answer's tokens the grammar had a part in, shape [tokens]; None where that cannot be told:
    a token has no text, a call is in the answer and not in its tokens, or is none that the grammar lets pass.
    """
    texts, ids = answer.token_texts, answer.response_ids
    if ids is None or texts is None or len(texts) != len(ids):
        return None
    calls = _calls("".join(texts), tags)
    if calls is None or (answer.tool_calls and not any(is_call for _, _, is_call in calls)):
        return None
    mask = np.zeros(len(ids), np.bool_)
    if calls:
        ends = np.cumsum([len(text) for text in texts])
        for begin, end, _ in calls:
            mask[_token_at(ends, begin) : _token_at(ends, end - 1) + 1] = True
    return mask


def _calls(text: str, tags: Tags) -> list[tuple[int, int, bool]] | None:
    """Begin and end of each masked piece of the text, and whether it is a call; or else it is the character
    that might have completed a trigger. A call that is cut off reaches to the end of the text."""
    nearly, found, at = tags.trigger[:-1], [], 0
    while (start := text.find(nearly, at)) >= 0:
        begin = at = start + len(nearly)
        if not text.startswith(tags.trigger, start):
            found += [(begin, begin + 1, False)] if begin < len(text) else []
            continue
        follows = text[begin + 1 : begin + 1 + len(tags.opening)]
        if not tags.opening.startswith(follows):
            return None
        end = text.find(tags.closing, begin)
        at = len(text) if end < 0 else end + len(tags.closing)
        found.append((begin, at, True))
    return found


def _token_at(ends: npt.NDArray[Any], place: int) -> int:
    """The token that holds the character at this place; `ends`: where each token's text ends."""
    return int(np.searchsorted(ends, place, side="right"))


def _choosable(body: Mapping[str, Any]) -> Sequence[Any]:
    """The tools that the model may call, or not."""
    return offered_tools(body) if body.get("tool_choice") in (None, "auto") else ()


def _is_strict(tool: Any) -> bool:
    """As the engine reads it: it takes "true" and 1 for true as well."""
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and function.get("strict") not in (None, False)
