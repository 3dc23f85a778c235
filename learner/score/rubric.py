"""Rubrics: versioned files, `<name>@<version>.md`, built in or your own; and which is for which turn."""

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from dukou.errors import DukouError
from learner.score.next_state import Case

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
