"""Chooses among hints: those that enough votes give, and the one that moves the teacher most. Pure.

The effect of a hint is how far it moves the teacher's log-probabilities of the stored answer, up or down: a
hint teaches by what it takes from wrong tokens as well as by what it adds to right ones, and teacher − old is
the advantage that the step will see. The largest rise alone would choose the hint that makes the answer
likelier as it stands, the largest fall the one that fits it least. All hints are of one answer, so the mean
over its tokens ranks them as the sum does.

Whether a hint gives the answer away: it must not quote word for word what it corrects. Pure.

A teacher that reads the old answer in its hint would raise the probability of that very answer, which is the
opposite of what the hint is for.

A hint as one bounded line that a chat template and a tokenizer read as plain words. Pure.

A person's comment and a judge's text go into the teacher's prompt, in the user's turn. They can end neither
that turn nor the brackets they stand in: brackets become round, a sign that begins a tag becomes another, and
whatever is not seen becomes a space. What a tokenizer makes of the line is checked where it is rendered
(`learner/hints/template.py`).

The enhanced prompt: the same conversation, its last user message with the hint behind it. Pure.
"""

import re
import unicodedata
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dukou.store.scores import OK, Vote
from learner.text import words

SHORTEST_HINT = 11  # characters; a shorter one says nothing

Logprobs = npt.NDArray[np.floating[Any]]
Name = TypeVar("Name", bound=Hashable)


def hints_of(votes: Sequence[Vote], quorum: int) -> tuple[str, ...]:
    """What the votes say the answer should have been told: each text once, in the order of the votes.

    Empty where fewer than `quorum` votes have a hint: one vote's idea is not enough.
    """
    said = [vote.hint.strip() for vote in votes if vote.status == OK and vote.hint]
    usable = [hint for hint in said if len(hint) >= SHORTEST_HINT]
    return tuple(dict.fromkeys(usable)) if len(usable) >= quorum else ()


def effect(told: Logprobs, untold: Logprobs) -> float | None:
    """Mean nats by which a hint moves the answer's tokens, up or down; None where no position has both.

    `told` and `untold` (T,): log-probabilities of the answer's tokens with and without the hint. Raises
    ValueError where their lengths differ.
    """
    if told.shape != untold.shape:
        raise ValueError(f"{told.shape[0]} and {untold.shape[0]} tokens are not the same answer")
    moved = np.abs(told - untold)
    known = moved[np.isfinite(moved)]
    return float(known.mean()) if known.size else None


def by_effect(told: Mapping[Name, Logprobs], untold: Logprobs) -> list[Name]:
    """The hints in ascending order of effect; equal ones as they came, one without an effect first."""
    effects = {name: effect(logprobs, untold) for name, logprobs in told.items()}
    return sorted(effects, key=lambda name: -1.0 if (of := effects[name]) is None else of)


LONGEST_QUOTE = 8  # words in a row that a hint may share with the answer; a Chinese character is a word


def quotes(hint: str, answer: str) -> bool:
    """Whether the hint repeats more than LONGEST_QUOTE words of the answer in a row, or the whole of it."""
    said, answered = words(hint), words(answer)
    if not answered:
        return False
    length = min(LONGEST_QUOTE + 1, len(answered))
    if length < 3:  # "yes" may stand in any hint
        return said == answered
    pieces = {tuple(answered[at : at + length]) for at in range(len(answered) - length + 1)}
    return any(tuple(said[at : at + length]) in pieces for at in range(len(said) - length + 1))


HINT_CHARACTERS = 600  # a few sentences; more is cut at a word

_BLANK = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp", "Zs"))
_ROUND = str.maketrans("[]［］", "()()")
_TAG = re.compile(r"[<＜](?![\s=])")
_ROLE = re.compile(r"\b(USER|ASSISTANT|SYSTEM|HUMAN|User|Assistant|System|Human|TOOL|Tool)\s?[:：]")
_HEADING = re.compile(r"#{2,}")


def one_line(text: str) -> str:
    """The text as such a line, of at most HINT_CHARACTERS; empty where nothing is left to read. Twice is the
    same as once."""
    begins = text.strip()[: 4 * HINT_CHARACTERS]
    seen = "".join(" " if unicodedata.category(sign) in _BLANK else sign for sign in begins)
    line = _TAG.sub("‹", seen.translate(_ROUND))
    line = " ".join(_HEADING.sub("#", _ROLE.sub(r"\1 -", line)).split())
    if len(line) <= HINT_CHARACTERS:
        return line
    whole = line[: HINT_CHARACTERS - 2].rpartition(" ")[0] or line[: HINT_CHARACTERS - 2]
    return f"{whole} …"


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
