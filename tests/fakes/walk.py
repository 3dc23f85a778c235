"""A random walk over chats whose truth is known: what clients do to their histories (case T16)."""

import random
from dataclasses import dataclass, field
from uuid import UUID

from tests.fakes.ferry import Ferry
from tests.fakes.spooled import Message, Worker, assistant, system, user

MOVES = ("continue", "continue", "continue", "regenerate", "edit", "abort", "side", "compact", "parallel")


@dataclass
class Chat:
    """`turns`: those that its history consists of now: turn, the messages it was asked, the answer kept."""

    number: int
    turns: list[tuple[UUID, list[Message], str]] = field(default_factory=list)


@dataclass
class Walk:
    """`truth`: turn → its chat (None: a helper's) and parent; `compacted`: first turns after a summary."""

    ferry: Ferry
    dice: random.Random
    workers: list[Worker]
    chats: list[Chat]
    truth: dict[UUID, tuple[int | None, UUID | None]] = field(default_factory=dict)
    compacted: set[UUID] = field(default_factory=set)
    step: int = 0

    def go(self) -> None:
        """One operation."""
        self.step += 1
        chat = self.dice.choice(self.chats)
        self.ferry.worker = self.dice.choice(self.workers)
        move = self.dice.choice(MOVES)
        if not chat.turns:
            self._say(chat, [system(f"chat {chat.number}"), user(f"hi, this is {chat.number}")], None)
        elif move == "regenerate":
            turn, asked, _ = chat.turns.pop()
            self._say(chat, asked, self.truth[turn][1])
        elif move == "edit" and len(chat.turns) > 1:
            chat.turns.pop()
            self._continue(chat, f"edited {self.step}")
        elif move == "side":
            helper = self.ferry.say([user(f"### Task:\nWrite a title\n{chat.number} {self.step}")], "T")
            self.truth[helper] = (None, None)
        elif move == "compact":
            self._compact(chat)
        elif move == "parallel":
            self._parallel(chat)
        else:
            self._continue(chat, f"more {self.step}", stopped=move == "abort")

    def _continue(self, chat: Chat, more: str, *, stopped: bool = False) -> None:
        turn, asked, said = chat.turns[-1]
        self._say(chat, [*asked, assistant(said), user(more)], turn, stopped=stopped)

    def _compact(self, chat: Chat) -> None:
        """A summary of everything takes the history's place."""
        turn, asked, said = chat.turns[-1]
        words = f"In chat {chat.number} they spoke about {self.dice.random()} and other things."
        summary = self.ferry.say([*asked, assistant(said), user("Summarise the conversation so far")], words)
        self.truth[summary] = (chat.number, turn)
        chat.turns.clear()
        opening = [system(f"chat {chat.number}"), user(f"Summary: {words}"), user(f"go on {self.step}")]
        self.compacted.add(self._say(chat, opening, None))

    def _parallel(self, chat: Chat) -> None:
        """Two requests go on from the same answer, at the same time; the user keeps the second."""
        turn, asked, said = chat.turns[-1]
        self.ferry.clock += 1
        branches = [[*asked, assistant(said), user(f"branch {n} {self.step}")] for n in range(2)]
        made = [self.ferry.worker.ask(self.ferry.clock + n / 10, branches[n]) for n in range(2)]
        for n, one in enumerate(made):
            self.ferry.worker.answer(one, self.ferry.clock + 0.5 + n / 10, f"branch {n} answered {self.step}")
            self.truth[UUID(one)] = (chat.number, turn)
        chat.turns.append((UUID(made[1]), branches[1], f"branch 1 answered {self.step}"))

    def _say(self, chat: Chat, asked: list[Message], parent: UUID | None, *, stopped: bool = False) -> UUID:
        answer = f"{self.dice.choice(['yes', 'no', 'perhaps'])} {self.step}"
        if stopped:
            self.ferry.clock += 1
            made = UUID(self.ferry.worker.ask(self.ferry.clock, asked))
            outcome = "client_disconnect"
            self.ferry.worker.answer(made.hex, self.ferry.clock + 0.5, answer, outcome=outcome)
        else:
            made = self.ferry.say(asked, answer)
        chat.turns.append((made, asked, answer[:-1] if stopped else answer))
        self.truth[made] = (chat.number, parent)
        return made
