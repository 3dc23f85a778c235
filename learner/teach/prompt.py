"""The enhanced prompt: the same conversation, its last user message with the hint behind it. Pure."""

from collections.abc import Sequence
from typing import Any

from learner.teach.line import one_line

#: Between the user's words and the hint. The policy learns to answer as if it had been told.
FRAME = "\n\n[Hint for a better answer: {hint}]"


def with_hint(messages: Sequence[Any], hint: str) -> list[Any] | None:
    """The messages with the hint, as one line, at the end of the last user message; None where there is none.

    In a tool loop that is not the last message of all: the results after it stay as they are.
    """
    places = [n for n, message in enumerate(messages) if _by_user(message)]
    if not places:
        return None
    enhanced = list(messages)
    last = messages[places[-1]]
    enhanced[places[-1]] = {
        **last,
        "content": _longer(last.get("content"), FRAME.format(hint=one_line(hint))),
    }
    return enhanced


def _longer(content: Any, words: str) -> Any:
    if isinstance(content, list):
        return [*content, {"type": "text", "text": words}]
    return f"{content or ''}{words}"


def _by_user(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "user"
