"""The offline judge's rules: a next state to a verdict. Pure; the words are in phrases.py.

In this order, the first that applies decides:

1. What the user says of the answer, clause by clause: a correction, complaint or refusal is -1, praise is +1.
   Praise with a "but" that leads to a complaint or a change request is -1; praise before a question is +1.
2. A request to change the answer, or the same question again, is -1.
3. Any other user message is a plain follow-up: 0.
4. Tool results without a user message: +1 where none reports an error, else -1.
5. Nothing readable (no text, or a script other than Latin and Chinese): no verdict.
"""

import re
import unicodedata
from dataclasses import dataclass
from difflib import SequenceMatcher

from learner.score.next_state import TOOL_ROLES, Case
from learner.score.phrases import CHANGE, CLAUSE, CONTRAST, CORRECTION, PRAISE, REFUSAL
from learner.score.tool_results import is_error
from learner.text import text_of

RULES = "rules@1"
OPENING_CLAUSES = 8  # what a user thinks of an answer comes first; pasted material comes later
SAME_QUESTION = 0.86  # likeness (difflib's ratio) from which a question is the same one
SHORTEST_QUESTION = 6  # characters; shorter texts are alike by chance
COMPARED_CHARACTERS = 400

_STRAIGHT = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"'})
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.S)
_QUOTE = re.compile(r"^\s*>.*$", re.M)


@dataclass(frozen=True, slots=True)
class Verdict:
    value: int | None  # -1, 0, 1; None: cannot tell
    reason: str


def verdict(case: Case) -> Verdict:
    """What the next state says of the answer."""
    said = "\n".join(text_of(m) for m in case.next_state if m["role"] == "user").strip()
    if said:
        return of_user(said, case.asked)
    results = [message for message in case.next_state if message["role"] in TOOL_ROLES]
    if not results:
        return Verdict(None, "nothing to read")
    failed = sum(map(is_error, results))
    return (
        Verdict(-1, f"{failed} of {len(results)} tool results failed") if failed else Verdict(1, "tools ran")
    )


def of_user(said: str, asked: str) -> Verdict:
    """What a user's message says of the answer to `asked`."""
    text = fold(_QUOTE.sub(" ", _CODE.sub(" ", said)))
    if not _readable(text):
        return Verdict(None, "no English or Chinese text")
    clauses = [clause for piece in CLAUSE.split(text) if (clause := piece.strip(" \"'()-*"))]
    opinion = _opinion(clauses[:OPENING_CLAUSES])
    if opinion is not None:
        return opinion
    if CHANGE.pattern.search(text[:COMPARED_CHARACTERS]):
        return Verdict(CHANGE.value, CHANGE.reason)
    if same_question(text, fold(asked)):
        return Verdict(-1, "asked again")
    return Verdict(0, "plain follow-up")


def fold(text: str) -> str:
    """One spelling: compatibility forms, case and quotes."""
    return unicodedata.normalize("NFKC", text).translate(_STRAIGHT).casefold().strip()


def same_question(text: str, asked: str) -> bool:
    """Whether two folded texts are one question, but for a few characters."""
    left, right = text[:COMPARED_CHARACTERS], asked[:COMPARED_CHARACTERS]
    if min(len(left), len(right)) < SHORTEST_QUESTION:
        return False
    return left == right or SequenceMatcher(None, left, right, autojunk=False).ratio() >= SAME_QUESTION


def _opinion(clauses: list[str]) -> Verdict | None:
    praised: Verdict | None = None
    contrast = False
    for clause in clauses:
        contrast = contrast or CONTRAST.match(clause) is not None
        # "not bad", "no complaints": praise that is spelt with a complaint's words.
        praise = PRAISE.pattern.search(clause)
        signs = (REFUSAL, CORRECTION, CHANGE) if contrast else (REFUSAL, CORRECTION)
        found = next((sign for sign in signs if sign.pattern.search(clause)), None)
        if found is not None and not praise and (praised is None or contrast):
            return Verdict(found.value, found.reason)
        if praise and praised is None:
            praised = Verdict(PRAISE.value, PRAISE.reason)
    return praised


def _readable(text: str) -> bool:
    letters = [c for c in text if c.isalpha()]
    known = sum(c.isascii() or "\u00c0" <= c <= "\u024f" or "\u4e00" <= c <= "\u9fff" for c in letters)
    return bool(letters) and known * 2 > len(letters)
