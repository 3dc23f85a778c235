"""How a turn ended, and whether it may be trained. Pure; reasons are those of `states.REASONS`."""

from collections.abc import Mapping
from typing import Any

from dukou.settings.serving import StoreFalse
from gateway.fold.align import Capture
from gateway.fold.answer import Answer, Reply
from gateway.lineage.kinds import CHAT
from gateway.privacy import forbids_training

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
