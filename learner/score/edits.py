"""An answer that the user wrote anew: a later request brings it back changed. Pure.

Clients change answers too: they cut them to fit, strip their markup, add sources below them, or put another
model's answer or a summary in their place. What looks like one of these says nothing. An edit takes words
out, brings words in, and leaves at least half as it was. What no reader can see is no difference, neither in
the answer nor in what was said before it (dukou/store/visible.py).
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from dukou.store.visible import typed, visible
from learner.text import Message, text_of, well_formed, without_thinking, words

LEAST_SHARED = 0.5  # of the words of both (Dice); less: another text stands in the answer's place


def corrected(asked: Sequence[Any], answer: str, later: Sequence[Any]) -> str | None:
    """How the user had the answer to `asked` read in the messages `later`; None where that is no edit.

    Without what software left in it (line ends, blanks at the ends of lines): it becomes a demonstration.

    The conversation must be the same up to the answer, and must have gone on behind it. System messages are
    not compared: clients write the time into them.
    """
    before, after = _spoken(asked), _spoken(later)
    count = len(before)
    if len(after) < count + 2 or [*map(_said, before)] != [*map(_said, after[:count])]:
        return None
    kept, reaction = after[count], after[count + 1]
    if kept["role"] != "assistant" or kept.get("tool_calls") or reaction["role"] != "user":
        return None
    text = without_thinking(text_of(kept)).strip()
    return typed(text) if is_edit(without_thinking(answer), text) else None


def is_edit(answer: str, kept: str) -> bool:
    """Whether words were replaced by others, in a text that is still the same one."""
    said, read = words(answer), words(kept)
    if " ".join(said).startswith(" ".join(read)):  # cut, perhaps inside a word
        return False
    old, new = Counter(said), Counter(read)
    shared = (old & new).total()
    replaced = bool(old - new) and bool(new - old)
    return replaced and 2 * shared >= LEAST_SHARED * (old.total() + new.total())


def _spoken(messages: Sequence[Any]) -> list[Message]:
    return [message for message in well_formed(messages) if message["role"] not in ("system", "developer")]


def _said(message: Message) -> tuple[str, str]:
    return message["role"], visible(without_thinking(visible(text_of(message)))).strip()
