"""The normal form of a text: two texts that no reader can tell apart are one. Pure.

Between an answer and the request that brings it back, text goes through editors, databases, browsers and
templates. They write line ends as CRLF, cut blanks at the ends of lines, compose or decompose accents, and
add or lose characters without a glyph. None of that is somebody's change. `visible` is what lineage and the
evidence of edits compare; it never replaces what is stored, shown or sent.

What counts as the same:

* Characters without a glyph do not count: control characters, and what Unicode calls default-ignorable (soft
  hyphen, zero-width space, byte order mark, marks of direction, joiners, variation selectors). Joiners and
  selectors change how their neighbours are drawn, in emoji and in Indic scripts; but software loses them as
  readily as the others, and no word becomes another one by them.
* CR, CRLF and Unicode's own ends of lines and paragraphs are LF.
* Blanks of any width are spaces, but for the ideographic one, which indents.
* Accents: NFC. Not NFKC: a ligature, a superscript or a full-width letter looks different.
* Blanks at the end of a line do not count. Those at its beginning are code's indentation, and those between
  words may align a table: they do.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import Literal
from unicodedata import combining, is_normalized, normalize

import numpy as np

_Ranges = Sequence[tuple[int, int]]
_Table = np.ndarray[tuple[int], np.dtype[np.uint8]]  # shape [0x110000]: one number for each character

_UNSEEN: _Ranges = (
    *((0x00, 0x08), (0x0E, 0x1F), (0x7F, 0x84), (0x86, 0x9F), (0xAD, 0xAD), (0x180E, 0x180E)),
    *((0x200B, 0x200B), (0x2060, 0x2064), (0x206A, 0x206F), (0xFEFF, 0xFEFF), (0xFFF0, 0xFFF8)),
)
#: No glyphs either, but they say how their neighbours are drawn, or in which direction.
_SHAPING: _Ranges = (
    *((0x034F, 0x034F), (0x061C, 0x061C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180D)),
    *((0x180F, 0x180F), (0x200C, 0x200F), (0x202A, 0x202E), (0x2065, 0x2069), (0x3164, 0x3164)),
    *((0xFE00, 0xFE0F), (0xFFA0, 0xFFA0), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF)),
)
_LINE_ENDS: _Ranges = ((0x0D, 0x0D), (0x85, 0x85), (0x2028, 0x2029))
_BLANKS: _Ranges = ((0xA0, 0xA0), (0x2000, 0x200A), (0x202F, 0x202F), (0x205F, 0x205F))

_RARE_ASCII = bytes((*range(9), *range(11, 32), 127))  # control characters other than tab and LF
#: Marks on one letter (`_marks`): no script has so many, and sorting more would take the square of the time.
_MOST_MARKS = re.compile(b"\1{30}")


def _pattern(ranges: _Ranges) -> re.Pattern[str]:
    return re.compile("[" + "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in ranges) + "]+")


def _table(kinds: Iterable[_Ranges]) -> _Table:
    """For each character the bits of its kinds."""
    table = np.zeros(0x110000, np.uint8)
    for bit, ranges in enumerate(kinds):
        for low, high in ranges:
            table[low : high + 1] |= 1 << bit
    return table


_KINDS = _table((_UNSEEN, _SHAPING, _LINE_ENDS, _BLANKS))
_UNSEEN_BIT, _SHAPING_BIT, _LINE_END_BIT, _BLANK_BIT = 1, 2, 4, 8
_ANY_UNSEEN, _ANY_SHAPING = _pattern(_UNSEEN), _pattern(_SHAPING)


def visible(text: str) -> str:
    """What a reader sees of the text; the very same object where nothing had to change."""
    return text if _is_plain_ascii(text) else _cleaned(text, _UNSEEN_BIT | _SHAPING_BIT | _BLANK_BIT)


def typed(text: str) -> str:
    """The text without what software left in it, but drawn as it was; likewise the same object.

    Joiners, selectors, marks of direction and the widths of blanks stay.
    """
    return text if _is_plain_ascii(text) else _cleaned(text, _UNSEEN_BIT)


def begins(text: str, beginning: str) -> bool:
    """Whether one begins with the other, both in their normal form; a letter may be cut off its accent."""
    return _normal(text, "NFD").startswith(_normal(beginning, "NFD"))


def _is_plain_ascii(text: str) -> bool:
    if not text.isascii() or text.endswith((" ", "\t")):
        return False
    if text.isprintable():
        return True
    has_trailing = " \n" in text or "\t\n" in text
    return not has_trailing and len(text.encode().translate(None, _RARE_ASCII)) == len(text)


def _cleaned(text: str, unwanted: int) -> str:
    kinds, plain = _kinds(text), text
    if kinds & unwanted & _UNSEEN_BIT:
        plain = _ANY_UNSEEN.sub("", plain)
    if kinds & unwanted & _SHAPING_BIT:
        plain = _ANY_SHAPING.sub("", plain)
    if kinds & _LINE_END_BIT:
        plain = _replaced(plain, ("\r\n", *_characters(_LINE_ENDS)), "\n")
    if kinds & unwanted & _BLANK_BIT:
        plain = _replaced(plain, _characters(_BLANKS), " ")
    plain = "\n".join([line.rstrip() for line in _normal(plain, "NFC").split("\n")])
    return text if plain == text else plain


def _replaced(text: str, every: Iterable[str], by: str) -> str:
    for each in every:
        text = text.replace(each, by)
    return text


def _characters(ranges: _Ranges) -> Iterable[str]:
    return (chr(code) for low, high in ranges for code in range(low, high + 1))


def _kinds(text: str) -> int:
    """The kinds of all characters, as bits: one pass, for a pattern takes several times as long."""
    return int(np.bitwise_or.reduce(_KINDS.take(_codes(text))))


def _codes(text: str) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def _normal(text: str, form: Literal["NFC", "NFD"]) -> str:
    if is_normalized(form, text):
        return text
    ends = [run.end() for run in _MOST_MARKS.finditer(_marks().take(_codes(text)).tobytes())]
    return "".join([normalize(form, text[start:end]) for start, end in pairwise((0, *ends, len(text)))])


@cache
def _marks() -> _Table:
    """1 for what stands on another character, as accents do."""
    return _table([[(code, code) for code in range(0x20000) if combining(chr(code))]])
