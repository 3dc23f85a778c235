"""A hint as one bounded line that a chat template and a tokenizer read as plain words. Pure.

A person's comment and a judge's text go into the teacher's prompt, in the user's turn. They can end neither
that turn nor the brackets they stand in: brackets become round, a sign that begins a tag becomes another, and
whatever is not seen becomes a space. What a tokenizer makes of the line is checked where it is rendered
(`learner/teach/render.py`).
"""

import re
import unicodedata

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
