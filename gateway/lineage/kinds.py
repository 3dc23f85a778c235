"""Which turns are the conversation itself (`main`) and which are a client's helpers (`side`). Pure.

An explicit word of the client counts most; then the endpoint; then what known clients send, as data. All
else is `main`, so that an unmodified chat client's turns are.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gateway.lineage.canonical import Form

CHAT = "/v1/chat/completions"

#: Words of `metadata.task` (Open WebUI) and what they are called here.
_TASKS = {
    "title_generation": "title",
    "tags_generation": "tags",
    "follow_up_generation": "follow_up",
    "query_generation": "query",
    "image_prompt_generation": "query",
    "autocomplete_generation": "autocomplete",
    "emoji_generation": "emoji",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """A known helper request: a pattern at the start of the last user message or of the system message."""

    reason: str
    where: Literal["user", "system"]
    pattern: re.Pattern[str]
    alone: bool  # its one user message is all there is: the chat is quoted inside


def _shape(reason: str, where: Literal["user", "system"], pattern: str, *, alone: bool) -> Shape:
    return Shape(reason, where, re.compile(pattern, re.IGNORECASE | re.DOTALL), alone)


_TASK = r"\s*#{1,3} ?task:?\s.{0,400}?"
SHAPES: tuple[Shape, ...] = (
    _shape("follow_up", "user", _TASK + r"\bfollow-?up (questions|prompts)", alone=True),
    _shape(
        "tags", "user", _TASK + r"\b(tags\b.{0,80}\b(categori|theme)|generate \S+ (broad )?tags)", alone=True
    ),
    _shape("title", "user", _TASK + r"\btitle\b", alone=True),
    _shape("query", "user", _TASK + r"\b(search quer|autocompletion|image generation)", alone=True),
    _shape(
        "title",
        "user",
        r"\s*(please )?(write|generate|create|provide|suggest) (me )?(a|an|one) [^.\n]{0,40}\btitle\b"
        r"[^.\n]{0,40}\b(conversation|chat|dialog)",
        alone=False,
    ),
    _shape(
        "title",
        "system",
        r"\s*(you are a title generator|(generate|summarize)[^.\n]{0,60}\btitle\b)",
        alone=True,
    ),
    _shape(
        "summary",
        "user",
        r"\s*(please )?(summari[sz]e|compact|condense) (the|this|our) "
        r"(entire |whole |full )?(conversation|chat|dialog)",
        alone=False,
    ),
    _shape(
        "summary",
        "user",
        r"\s*(your task is to create a (detailed )?summary of the conversation"
        r"|you are performing a context checkpoint compaction)",
        alone=False,
    ),
    _shape("memory", "user", r"\s*pre-compaction memory flush", alone=False),
)


def kind_of(
    endpoint: str, turn_type: str | None, body: Mapping[str, Any], forms: Sequence[Form]
) -> tuple[Literal["main", "side"], str | None]:
    """The kind of a turn, and for a side turn what it is.

    Args:
        endpoint: path of the request without a session prefix.
        turn_type: what the client said, `main` or `side`; None where it said nothing.
        forms: of the request's messages.
    """
    if endpoint != CHAT:
        return "side", "endpoint"
    if turn_type in ("main", "side"):
        return ("main", None) if turn_type == "main" else ("side", _recognised(body, forms) or "declared")
    reason = _recognised(body, forms)
    return ("main", None) if reason is None else ("side", reason)


def _recognised(body: Mapping[str, Any], forms: Sequence[Form]) -> str | None:
    metadata = body.get("metadata")
    task = metadata.get("task") if isinstance(metadata, dict) else None
    if isinstance(task, str) and task in _TASKS:
        return _TASKS[task]
    known = [form for form in forms if form.role is not None]
    spoken = [form for form in known if form.role != "system"]
    if not spoken or spoken[-1].role != "user":
        return None
    texts = {"user": spoken[-1].text, "system": "" if known[0] is spoken[0] else known[0].text}
    matches = (
        shape.reason
        for shape in SHAPES
        if (len(spoken) == 1 or not shape.alone) and shape.pattern.match(texts[shape.where])
    )
    return next(matches, None)
