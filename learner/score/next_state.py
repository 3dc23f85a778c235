"""The next state: what followed a turn. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from typing import Any

from dukou.store.contents import task_class
from dukou.store.scores import JudgedTurn
from learner.text import Message, text_of, well_formed

TOOL_ROLES = frozenset({"tool", "function"})


@dataclass(frozen=True, slots=True)
class Case:
    """What a judge judges: a request, its answer, and what came next. All messages in OpenAI's shape."""

    request: tuple[Message, ...]
    answer: str | None
    reasoning: str | None
    tool_calls: tuple[Message, ...]
    next_state: tuple[Message, ...]
    tenant: str = "default"
    task: str = "chat"  # chat | tools | tool_result

    @property
    def asked(self) -> str:
        """The text of the request's last user message; empty where there is none."""
        return next((text_of(message) for message in reversed(self.request) if message["role"] == "user"), "")


def case_of(judged: JudgedTurn) -> Case:
    """The recorded turn and its successor, as a case."""
    return Case(
        request=well_formed(judged.messages),
        answer=judged.response_text,
        reasoning=judged.reasoning_text,
        tool_calls=tuple(call for call in judged.tool_calls if isinstance(call, dict)),
        next_state=next_state(judged.next_messages, judged.parent_messages),
        tenant=judged.tenant,
        task=task_class(judged.messages, judged.tools),
    )


def next_state(messages: Sequence[Any], parent_messages: int | None) -> tuple[Message, ...]:
    """The new messages of the following request: a user message, or all parallel tool results.

    The answer itself, if the history does not count it, is skipped; the next state ends before a further
    assistant message, which only the client can have written. Empty where nothing new was said.
    """
    if parent_messages is None:
        return ()
    new = well_formed(messages[parent_messages:])
    after_answer = dropwhile(_by_assistant, new)
    return tuple(takewhile(lambda message: not _by_assistant(message), after_answer))


def _by_assistant(message: Message) -> bool:
    return bool(message["role"] == "assistant")
