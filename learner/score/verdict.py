"""A judge's answer to a verdict: strict, and never a guess. Pure.

What counts is `\boxed{-1|0|+1}` or `{"score": -1|0|1}`, outside thinking and quotations. Where a reply has
several, they must agree, or the last must stand alone at the end, on lines of its own: a judge that repeats
what it was told to say has contradicted itself, and which of the two it meant is a guess.
Numbers in prose, other scales, prefixes and cut-off JSON are unparsable: a missing vote, not a 0.
Accepted spellings: `1`, `+1`, `-1`, `−1`, `0`, `1.0`, the same in quotes or `\text{}`, with outer blanks.
Not accepted: full-width digits, decimal commas, `1e0`, fractions, `true`. `null` is an abstention.

Votes to score: quorum, majority, tie, abstention. Pure.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dukou.store.calls import of_channel
from dukou.store.scores import ABSTAINED, OK, Score, Vote
from learner.hints.choose import hints_of
from learner.text import without_thinking

UNPARSABLE = "unparsable"

_QUOTED = re.compile(
    r"^[ \t]*>.*$"  # a quoted line
    r"|“[^”]*”|‘[^’]*’|「[^」]*」|『[^』]*』|«[^»]*»|(?<!`)`[^`\n]+`(?!`)",
    re.M,
)
_QUOTED_BOX = re.compile(r'"[^"\n]*\\boxed[^"\n]*"')
_FENCE = re.compile(r"\A```(?:json)?\s*\n?(.*?)\n?```\Z", re.S | re.I)
_BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_TEXT = re.compile(r"\A\\(?:text|mathrm|mathbf)\s*\{(.*)\}\Z", re.S)
_ELSEWHERE = "…"  # what a quotation leaves behind: a verdict beside it does not stand alone
_MARKUP = " \t\r\n*$"  # Markdown or LaTeX around a verdict
_VALUES = {
    "-1": -1,
    "−1": -1,
    "0": 0,
    "+0": 0,
    "-0": 0,
    "1": 1,
    "+1": 1,
    "-1.0": -1,
    "0.0": 0,
    "1.0": 1,
    "+1.0": 1,
}


@dataclass(frozen=True, slots=True)
class ParsedReply:
    status: str  # ok | abstained | unparsable
    value: int | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class _DeclaredVerdict:
    """A verdict that a text declares, and where."""

    start: int
    end: int
    said: ParsedReply


_NOTHING = ParsedReply(UNPARSABLE)
_Object = tuple[tuple[str, Any], ...]  # a JSON object with all its fields, those of one name too
_DECODER = json.JSONDecoder(object_pairs_hook=tuple)


def parse(text: str) -> ParsedReply:
    """The verdict in a judge's final message."""
    said = without_thinking(text).strip()
    fenced = _FENCE.match(said)
    whole = _as_object(fenced[1] if fenced else said)
    if whole is not None:
        return _from_object(whole)
    return _declared(_QUOTED.sub(_ELSEWHERE, said))


def _declared(text: str) -> ParsedReply:
    found = sorted(_verdicts(text), key=lambda verdict: verdict.start)
    if not found:
        return _NOTHING
    last = found[-1]
    agree = len({(verdict.said.status, verdict.said.value) for verdict in found}) == 1
    return last.said if agree or _alone_at_the_end(text, last) else _NOTHING


def _verdicts(text: str) -> Iterator[_DeclaredVerdict]:
    for start, end, value in _objects(text):
        if _fields(value, "score"):
            yield _DeclaredVerdict(start, end, _from_object(value))
        text = text[:start] + " " * (end - start) + text[end:]  # a box inside JSON is no box
    text = _QUOTED_BOX.sub(lambda match: " " * len(match[0]), text)
    for match in _BOXED.finditer(text):
        yield _DeclaredVerdict(match.start(), match.end(), _from_scalar(match[1].strip()))


def _alone_at_the_end(text: str, last: _DeclaredVerdict) -> bool:
    """Whether nothing else stands on its lines, and nothing after it but the end of a fence."""
    before = text[: last.start].rpartition("\n")[2]
    return not before.strip(_MARKUP) and not text[last.end :].replace("\n```", "").strip(_MARKUP)


def _objects(text: str) -> list[tuple[int, int, _Object]]:
    """The outermost JSON objects in a text, with their spans."""
    at = text.find("{")
    found: list[tuple[int, int, _Object]] = []
    while at >= 0:
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            if isinstance(value, tuple):
                found.append((at, end, value))
        at = text.find("{", end)
    return found


def _as_object(text: str) -> _Object | None:
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, tuple) else None


def _fields(value: _Object, name: str) -> list[Any]:
    return [field for key, field in value if key.casefold() == name]


def _from_object(value: _Object) -> ParsedReply:
    said = {_from_score(score) for score in _fields(value, "score")}
    if len(said) != 1:  # none, or several that contradict each other
        return _NOTHING
    [parsed] = said
    hint = next(iter(_fields(value, "hint")), None)
    if parsed.status != OK or not isinstance(hint, str):
        return parsed
    return ParsedReply(OK, parsed.value, hint.strip() or None)


def _from_score(score: Any) -> ParsedReply:
    if score is None:
        return ParsedReply(ABSTAINED)
    if isinstance(score, bool) or not isinstance(score, int | float | str):
        return _NOTHING
    return _from_scalar(str(score).strip())


def _from_scalar(text: str) -> ParsedReply:
    bare = _TEXT.sub(r"\1", text).strip()
    value = _VALUES.get(bare)
    return _NOTHING if value is None else ParsedReply(OK, value)


def decide(votes: Sequence[Vote], quorum: int, *, unanimous: bool = False) -> Score:
    """What the votes come to.

    A vote that failed is missing: it is no 0 and it does not lower the quorum. The value with the most
    votes wins; where several have the most, the score is 0, because it is a tie. Too few values, although
    the judge did answer often enough, is an abstention. `quorum` is at least 1.

    `unanimous`, for a turn that seems to speak to the judge: one vote that differs, or cannot tell, makes an
    abstention. The quorum is then every vote, so that none is won by keeping another from coming back.
    """
    values = [vote.value for vote in votes if vote.status == OK and vote.value is not None]
    abstained = sum(vote.status == ABSTAINED for vote in votes)
    if unanimous and (len(set(values)) > 1 or abstained):
        return Score(None, ABSTAINED)
    if len(values) < quorum:
        return Score(None, ABSTAINED if len(values) + abstained >= quorum else "no_quorum")
    ranking = Counter(values).most_common()
    tied = len(ranking) > 1 and ranking[0][1] == ranking[1][1]
    value, reason = (0, "tie") if tied else (ranking[0][0], "majority")
    return Score(float(value), reason, max(hints_of(votes, quorum), key=len, default=None))


def blames_turn(vote: Vote) -> bool:
    """Whether the vote is missing for a reason that lies in what was asked or said, not in the channel."""
    return not vote.came_back and not of_channel(vote.status)
