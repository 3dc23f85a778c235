"""JSON as the wild sends it: NaN, lone surrogates, broken UTF-8. What parses nowhere is a ValueError."""

import json
from typing import Any

import orjson


def loads(data: bytes) -> Any:
    """Parses fast, and once more leniently where the strict parser refuses.

    NaN and infinities become floats; bytes that are no UTF-8 become lone surrogates, which
    `gateway.fold.readable` marks.

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
