"""A teacher without log-probabilities: any chat model, asked for the answer that the hint would have given.

Its answer is a demonstration: it is kept for export and SFT, never trained on by the step.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from dukou.settings import learning
from dukou.store.calls import Call
from learner.llm.access import misconfigured, of_teacher
from learner.llm.channel import Channel
from learner.teach.prompt import with_hint
from learner.text import text_of, well_formed, without_thinking

_ROLES = frozenset({"system", "developer", "user", "assistant"})


class Demonstrator:
    def __init__(self, settings: learning.TeacherSettings) -> None:
        self.source = f"teacher:{settings.model}"
        self._max_tokens = settings.max_tokens
        access = of_teacher(settings)
        self.problem = misconfigured(access)
        self._channel = Channel(access, clock=lambda: datetime.now(UTC))

    def ask(self, messages: Sequence[Any], hint: str) -> tuple[str | None, tuple[Call, ...]]:
        """The corrected answer and what it took; None where none came, or the channel is closed."""
        question = conversation(messages, hint)
        result = self._channel.ask(question, self._max_tokens, None) if question else None
        if result is None:
            return None, ()
        answer = without_thinking(result.text or "").replace("\0", "").strip()
        return (answer if answer and not result.cut_off else None), result.calls


def conversation(messages: Sequence[Any], hint: str) -> list[dict[str, str]]:
    """The hinted conversation as any chat model takes it; empty where it ends in a tool loop."""
    told = with_hint(messages, hint)
    formed = well_formed(told or ())
    if not formed or formed[-1]["role"] != "user":
        return []
    return [
        {"role": "system" if message["role"] == "developer" else message["role"], "content": text_of(message)}
        for message in formed
        if message["role"] in _ROLES
    ]
