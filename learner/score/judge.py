"""Judges: what they have in common, and the one that judges by rules.

Rubrics: versioned files, `<name>@<version>.md`, built in or your own; and which is for which turn.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Protocol

from dukou.errors import DukouError
from dukou.store.calls import Call, Caps
from dukou.store.scores import ABSTAINED, OK, Vote
from learner.score.next_state import Case
from learner.score.rules_judge import RULES, verdict


@dataclass(frozen=True, slots=True)
class Ballot:
    """One vote and what it took. `vote` is None where the judge could not be asked at all."""

    vote: Vote | None
    calls: tuple[Call, ...] = ()


class Judge(Protocol):
    name: str  # "rules@1", "llm:openai/gpt-5-mini"
    votes: int  # how often a turn is judged
    quorum: int  # how many votes must come back
    concurrency: int  # votes at once that make sense
    seconds: float  # longest time that one vote takes
    caps: Caps  # on what it may cost

    def vote(self, case: Case, n: int) -> Ballot:
        """The n-th vote about a case; from any thread."""
        ...

    def rubric_of(self, case: Case) -> str:
        """The rubric that a case is judged by."""
        ...

    def waiting(self) -> str | None:
        """Why there is no use in asking now, in a sentence; None where there is."""
        ...


class RulesJudge:
    """The offline judge: rules on the next state, no key, no calls."""

    name = RULES
    votes = quorum = concurrency = 1
    seconds = 1.0
    caps = Caps()

    def rubric_of(self, case: Case) -> str:
        return RULES

    def vote(self, case: Case, n: int) -> Ballot:
        found = verdict(case)
        status = ABSTAINED if found.value is None else OK
        return Ballot(Vote(n, status, found.value, raw=found.reason))

    def waiting(self) -> str | None:
        return None


_NAME = re.compile(r"[a-z0-9_-]+@[0-9]+")


class UnknownRubricError(DukouError):
    """There is no such rubric; the message lists those that there are."""


class Rubrics:
    """The default rubric and the rules that give some turns another.

    A rule is `tenant:acme=strict@1` or `tenant:acme,task:tools=tools@2`; the first whose conditions all hold
    decides.

    Raises:
        UnknownRubricError: a rubric that is named does not exist; the message lists those that there are.
    """

    def __init__(self, default: str, rules: Sequence[str] = (), folder: str = "") -> None:
        self.default = default
        self._rules = [_rule(text) for text in rules]
        named = {default, *(rubric for _, rubric in self._rules)}
        self._texts = {name: load(name, folder) for name in sorted(named)}

    def name_for(self, case: Case) -> str:
        """The name of the rubric for a case."""
        facts = {("tenant", case.tenant), ("task", case.task)}
        return next((rubric for conditions, rubric in self._rules if conditions <= facts), self.default)

    def text(self, name: str) -> str:
        """What the judge is told."""
        return self._texts[name]


def load(name: str, folder: str = "") -> str:
    """The text of a rubric; a file in `folder` wins over a built-in one of the same name.

    Raises:
        UnknownRubricError: there is no such rubric; the message lists those that there are.
    """
    built_in = files("learner.score") / "rubrics"
    folders = [*([Path(folder)] if folder else []), built_in]
    if _NAME.fullmatch(name):
        for place in folders:
            if (file := place / f"{name}.md").is_file():
                return file.read_text(encoding="utf-8")
    known = sorted(
        {
            entry.name.removesuffix(".md")
            for place in folders
            if place.is_dir()
            for entry in place.iterdir()
            if entry.name.endswith(".md")
        }
    )
    raise UnknownRubricError(f"judge.rubric: there is no rubric {name!r}; there are: {', '.join(known)}")


def _rule(text: str) -> tuple[frozenset[tuple[str, str]], str]:
    conditions, _, rubric = text.rpartition("=")
    pairs = (condition.partition(":") for condition in conditions.split(","))
    return frozenset((name.strip(), value.strip()) for name, _, value in pairs), rubric
