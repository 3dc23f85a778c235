"""Rubrics: versioned files under learner/score/rubrics, `<name>@<version>.md`."""

import re
from importlib.resources import files

_NAME = re.compile(r"[a-z0-9_-]+@[0-9]+")


def load(name: str) -> str:
    """The text of a rubric.

    Raises:
        ValueError: there is no such rubric; the message lists those that there are.
    """
    folder = files("learner.score") / "rubrics"
    file = folder / f"{name}.md"
    if not _NAME.fullmatch(name) or not file.is_file():
        known = sorted(
            entry.name.removesuffix(".md") for entry in folder.iterdir() if entry.name.endswith(".md")
        )
        raise ValueError(f"judge.rubric: there is no rubric {name!r}; there are: {', '.join(known)}")
    return file.read_text(encoding="utf-8")
