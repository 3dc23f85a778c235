r"""A judge's answer to a verdict: strict, and never a guess. Pure.

What counts is the last of `\boxed{-1|0|+1}` and `{"score": -1|0|1}`, outside thinking and quotations.
Numbers in prose, other scales, prefixes and cut-off JSON are unparsable: a missing vote, not a 0.
Accepted spellings: `1`, `+1`, `-1`, `−1`, `0`, `1.0`, the same in quotes or `\text{}`, with outer blanks.
Not accepted: full-width digits, decimal commas, `1e0`, fractions, `true`. `null` is an abstention.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from store.votes import ABSTAINED, OK

UNPARSABLE = "unparsable"

_THINKING = re.compile(r"<(think|thinking|reasoning)>.*?(</\1>|\Z)", re.S | re.I)
_THINKING_END = re.compile(r"\A.*</(think|thinking|reasoning)>", re.S | re.I)
_QUOTED = re.compile(
    r"^[ \t]*>.*$"  # a quoted line
    r"|“[^”]*”|‘[^’]*’|「[^」]*」|『[^』]*』|«[^»]*»|(?<!`)`[^`\n]+`(?!`)",
    re.M,
)
_QUOTED_BOX = re.compile(r'"[^"\n]*\\boxed[^"\n]*"')
_FENCE = re.compile(r"\A```(?:json)?\s*\n?(.*?)\n?```\Z", re.S | re.I)
_BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_TEXT = re.compile(r"\A\\(?:text|mathrm|mathbf)\s*\{(.*)\}\Z", re.S)
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
class Parsed:
    status: str  # ok | abstained | unparsable
    value: int | None = None
    hint: str | None = None


_NOTHING = Parsed(UNPARSABLE)


def parse(text: str) -> Parsed:
    """The verdict in a judge's final message."""
    said = without_thinking(text).strip()
    fenced = _FENCE.match(said)
    whole = _as_object(fenced[1] if fenced else said)
    if whole is not None:
        return _from_object(whole)
    return _last(_QUOTED.sub(" ", said))


def without_thinking(text: str) -> str:
    """The text without thought blocks, also one that never ends or whose beginning is missing."""
    return _THINKING_END.sub("", _THINKING.sub(" ", text))


def _last(text: str) -> Parsed:
    found: list[tuple[int, Parsed]] = []
    for start, end, value in _objects(text):
        if _field(value, "score") is not _MISSING:
            found.append((start, _from_object(value)))
        text = text[:start] + " " * (end - start) + text[end:]  # a box inside JSON is no box
    text = _QUOTED_BOX.sub(lambda match: " " * len(match[0]), text)
    found += [(match.start(), _from_scalar(match[1].strip())) for match in _BOXED.finditer(text)]
    return max(found, key=lambda item: item[0], default=(0, _NOTHING))[1]


def _objects(text: str) -> list[tuple[int, int, dict[str, Any]]]:
    """The outermost JSON objects in a text, with their spans."""
    decoder, at = json.JSONDecoder(), text.find("{")
    found: list[tuple[int, int, dict[str, Any]]] = []
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            if isinstance(value, dict):
                found.append((at, end, value))
        at = text.find("{", end)
    return found


def _as_object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


_MISSING = object()


def _field(value: dict[str, Any], name: str) -> Any:
    return next((v for k, v in value.items() if k.casefold() == name), _MISSING)


def _from_object(value: dict[str, Any]) -> Parsed:
    score, hint = _field(value, "score"), _field(value, "hint")
    if score is _MISSING:
        return _NOTHING
    if score is None:
        return Parsed(ABSTAINED)
    if isinstance(score, bool) or not isinstance(score, int | float | str):
        return _NOTHING
    parsed = _from_scalar(str(score).strip())
    return Parsed(parsed.status, parsed.value, hint.strip() or None) if isinstance(hint, str) else parsed


def _from_scalar(text: str) -> Parsed:
    bare = _TEXT.sub(r"\1", text).strip()
    value = _VALUES.get(bare)
    return _NOTHING if value is None else Parsed(OK, value)
