"""Text that Postgres can hold. Pure.

Postgres has no NUL in text, and UTF-8 has no lone surrogates. In readable columns each is replaced by a
marker, in keys and in values, and the turn says `text_altered`; the request's exact bytes are kept beside.
The characters are replaced, never their escapes: a literal backslash-u0000 in a text stays what it is.

JSON as the wild sends it: NaN, lone surrogates, broken UTF-8. What parses nowhere is a ValueError.
"""

import json
import math
import re
from typing import Any

import orjson

NUL_MARKER = "\u2400"  # ␀, the picture of NUL
SURROGATE_MARKER = "\ufffd"

_UNREADABLE = re.compile("[\x00\ud800-\udfff]")


class Marker:
    """Replaces what cannot be held, and remembers whether it had to."""

    def __init__(self) -> None:
        self.altered = False

    def text(self, value: str | None) -> str | None:
        return None if value is None else self._text(value)

    def json(self, value: Any) -> Any:
        """A JSON value of plain types; NaN and infinities, which JSON does not have, become null."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return {self._text(str(key)): self.json(item) for key, item in value.items()}
        if isinstance(value, list) or isinstance(value, tuple):  # noqa: SIM101 (a union costs as much again)
            return [self.json(item) for item in value]
        if isinstance(value, float) and not math.isfinite(value):
            self.altered = True
            return None
        return value

    def _text(self, value: str) -> str:
        if "\x00" not in value and (value.isascii() or _UNREADABLE.search(value) is None):
            return value
        self.altered = True
        return _UNREADABLE.sub(_marker, value)


def _marker(match: re.Match[str]) -> str:
    return NUL_MARKER if match[0] == "\x00" else SURROGATE_MARKER


def loads(data: bytes) -> Any:
    """Parses fast, and once more leniently where the strict parser refuses.

    NaN and infinities become floats; bytes that are no UTF-8 become lone surrogates, which
    `gateway.parse.text` marks.

    Raises:
        ValueError: this is no JSON.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return loads_exact(data)


def loads_exact(data: bytes) -> Any:
    """The same, without rounding integers beyond 64 bits: for what must be read back as it was sent.

    Raises:
        ValueError: this is no JSON.
    """
    try:
        return json.loads(data.decode("utf-8-sig", "surrogateescape"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
