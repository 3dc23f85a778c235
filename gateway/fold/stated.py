"""Which policy version a reply says that it comes from."""

import re
from collections.abc import Iterable
from typing import Any

#: An adapter's name carries its version: the engine's own label stays as it is when adapters change.
_ADAPTER = re.compile(r"-v(\d{1,9})$")


def adapter_version(name: str) -> tuple[int, int] | None:
    """The version in an adapter's name, like 3 in `default-v3`."""
    match = _ADAPTER.search(name)
    return (int(match[1]), int(match[1])) if match else None


def span(labels: Iterable[Any]) -> tuple[int, int] | None:
    """Oldest and newest of the labels; None where there is none, or one that is no version number.

    A label like "default" is not version 0: it is unknown.
    """
    known: list[int] = []
    for label in labels:
        number = _number(label)
        if number is None:
            return None
        known.append(number)
    return (min(known), max(known)) if known else None


def of_meta_info(meta: Any) -> tuple[int, int] | None:
    """From a choice's `meta_info`: its spans, else its one label."""
    if not isinstance(meta, dict):
        return None
    spans = meta.get("weight_versions")
    if isinstance(spans, list) and spans:
        return span(part.get("version") if isinstance(part, dict) else part for part in spans)
    return of_label(meta)


def of_label(holder: Any) -> tuple[int, int] | None:
    """From any object with a `weight_version`."""
    if not isinstance(holder, dict) or holder.get("weight_version") is None:
        return None
    number = _number(holder["weight_version"])
    return None if number is None else (number, number)


def _number(label: Any) -> int | None:
    if isinstance(label, int) and not isinstance(label, bool) and 0 <= label < 2**31:
        return label
    is_number = isinstance(label, str) and label.isascii() and label.isdigit() and len(label) <= 9
    return int(label) if is_number else None
