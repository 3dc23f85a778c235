"""Lessons: what a judged turn teaches beside its score. Hints for the trainer's teacher, and demonstrations.

Made while no transaction is open; written in the one that moves the turn to `scored`. A lesson that cannot be
made is left out and said once: scoring never waits for a teacher.

A teacher without log-probabilities: any chat model, asked for the answer that the hint would have given.

Its answer is a demonstration: it is kept for export and SFT, never trained on by the step.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Engine

from dukou.settings import learning
from dukou.settings.model import Config
from dukou.store import calls, hints, policies, spans
from dukou.store.calls import Call
from dukou.store.hints import HintTarget, NewHint
from dukou.store.scores import Vote
from learner.hints.choose import by_effect, hints_of, one_line, quotes, with_hint
from learner.hints.teacher_engine import AlignmentError, TeacherEngine, TeacherEngineError
from learner.hints.template import (
    CannotRenderError,
    ControlTokensError,
    Conversation,
    Ids,
    Render,
    control_tokens,
    encoder,
    enhanced,
    renderer,
)
from learner.llm.client import Channel
from learner.llm.limits import misconfigured, of_teacher
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


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lesson:
    """What there is to write about one turn, perhaps nothing."""

    turn_id: UUID
    hints: tuple[NewHint, ...] = ()
    demonstration: str | None = None
    source: str = ""
    told: str | None = None  # the hint that the demonstration follows
    calls: tuple[Call, ...] = ()

    def write(self, connection: Connection) -> None:
        ids = [calls.record(connection, call, self.turn_id) for call in self.calls]
        hints.record(connection, self.turn_id, self.hints)
        if self.demonstration is not None:
            call = ids[-1] if ids else None
            hints.record_demonstration(
                connection, self.turn_id, self.source, self.demonstration, self.told, call
            )
        calls.add_up(connection, self.calls)


class Lessons:
    """Makes lessons; from any thread. Nothing is loaded before a turn has something to teach."""

    def __init__(self, engine: Engine, config: Config) -> None:
        self._engine = engine
        self._config = config
        self._wants_hints = config.loss.mode != "rl"
        self._demonstrator = Demonstrator(config.teacher) if config.teacher.enable else None
        url = config.teacher.engine_url
        self._teacher = TeacherEngine(url) if url and self._wants_hints else None
        self._render: Render | None = None
        self._control: frozenset[int] = frozenset()
        self._said: set[str] = set()
        self._verified = False
        if self._demonstrator and self._demonstrator.problem:
            self._say(self._demonstrator.problem)

    def of_votes(self, turn_id: UUID, votes: Sequence[Vote], quorum: int) -> Lesson:
        """What the judges' hints teach; nothing where fewer than `quorum` of them have one."""
        return self.of_texts(turn_id, hints_of(votes, quorum))

    def of_texts(self, turn_id: UUID, texts: Sequence[str]) -> Lesson:
        """What these hints teach of a turn. Each is somebody else's text: it is taught and kept as a line."""
        texts = [line for line in dict.fromkeys(map(one_line, texts)) if line]
        if not texts or not (self._wants_hints or self._demonstrator):
            return Lesson(turn_id)
        with self._engine.connect() as connection:
            target = hints.read_target(connection, turn_id)
        if target is None:
            return Lesson(turn_id)
        honest = [text for text in texts if not quotes(text, target.response_text or "")]
        made = self._enhanced(target, honest[: self._config.teacher.candidates]) if self._wants_hints else ()
        answer, told, paid = None, max(honest, key=len, default=None), tuple[Call, ...]()
        if self._demonstrator is not None and told is not None:
            answer, paid = self._demonstrator.ask(target.messages, told)
        source = self._demonstrator.source if self._demonstrator else ""
        return Lesson(turn_id, made, answer, source, told, paid)

    def _enhanced(self, target: HintTarget, texts: Sequence[str]) -> tuple[NewHint, ...]:
        """The hints with their prompts: the most informative one where it was measured, else all of them,
        the longest last. Then the trainer measures them."""
        made: dict[str, NewHint] = {}
        for text in sorted(texts, key=len):
            hinted = with_hint(target.messages, text)
            if hinted is None or target.prompt_ids is None:
                continue
            try:
                ids = self._ids(target, hinted)
            except ControlTokensError as error:
                self._say(f"a hint is left out: {error}")
                continue
            except (CannotRenderError, OSError, ValueError) as error:
                self._say(f"no hint for some turns: {error}")
                return ()
            made[text] = NewHint(text, ids)
        best = self._measured(target, made)
        return tuple(made.values()) if best is None else (made[best],)

    def _ids(self, target: HintTarget, hinted: Sequence[object]) -> Ids:
        if self._render is None:
            model = self._model()
            self._control = control_tokens(model)
            self._render = renderer(model)
        assert target.prompt_ids is not None
        conversation = Conversation(target.messages, target.tools, target.sampling)
        return enhanced(self._render, conversation, hinted, target.prompt_ids, self._control)

    def _measured(self, target: HintTarget, made: dict[str, NewHint]) -> str | None:
        """The most informative of several hints; None where no teacher engine is there and idle."""
        answer, prompt = target.response_ids, target.prompt_ids
        if self._teacher is None or len(made) < 2 or answer is None or prompt is None:
            return None
        try:
            if not self._teacher.is_idle():
                return None
            self._verify(self._teacher)
            trained = _trained(target)
            untold = self._teacher.logprobs(prompt.tolist(), answer)[trained]
            told = {
                text: self._teacher.logprobs(hint.prompt_ids.tolist(), answer)[trained]
                for text, hint in made.items()
            }
        except (TeacherEngineError, AlignmentError, OSError) as error:
            self._say(f"the trainer chooses between hints: {error}")
            return None
        return by_effect(told, untold)[-1]

    def _verify(self, teacher: TeacherEngine) -> None:
        """Once: log-probabilities of another tokenizer's tokens would mean nothing."""
        if not self._verified:
            teacher.verify(encoder(self._model()))
            self._verified = True

    def _model(self) -> Path:
        with self._engine.connect() as connection:
            policy = policies.get(connection, self._config.policy.name)
        if policy is None:
            raise CannotRenderError(f"no turn has come for the policy {self._config.policy.name!r} yet")
        return Path(policy.base_model)

    def _say(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            log.warning("teacher: %s", sentence)


def _trained(target: HintTarget) -> Any:
    """What chooses the answer's tokens that may be trained out of all of them."""
    answer, chosen = target.response_ids, target.trained_tokens
    return slice(None) if answer is None or chosen is None else spans.positions(chosen, len(answer))
