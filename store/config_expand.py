"""`${ENV}`, `${ENV:-default}` and `$$` in the strings of a settings file."""

import json
import re
from collections.abc import Mapping

from store.errors import DukouError

_REFERENCE = re.compile(
    r"""\$(?: (?P<dollar>\$) | \{ (?: (?P<name>[A-Za-z_]\w*) (?: :-(?P<default>[^}]*) )? \} )? )""",
    re.ASCII | re.VERBOSE,
)


class ExpansionError(DukouError):
    """Says which variable is missing, or what is wrong with the reference; never a variable's value."""


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Replaces the references, once: what a variable holds is not looked at again.

    As in a shell, `:-` also applies to a variable that is set and empty. A lone `$` stays.
    Raises ExpansionError, naming every variable that is missing.
    """
    missing = dict.fromkeys(
        match["name"]
        for match in _REFERENCE.finditer(text)
        if match["name"] and match["default"] is None and match["name"] not in environ
    )
    if missing:
        names, verb = " and ".join(missing), "is" if len(missing) == 1 else "are"
        example = f"${{{next(iter(missing))}:-default}}"
        raise ExpansionError(f"{names} {verb} not set in the environment; export it, or write {example}")
    return _REFERENCE.sub(lambda match: _replacement(match, environ), text)


def expand_items(value: object, environ: Mapping[str, str]) -> object:
    """A list's items, expanded. Text with a reference, or in place of the list, is comma-separated items."""
    if isinstance(value, str):
        return split(expand(value, environ))
    if not isinstance(value, list):
        return value
    items: list[object] = []
    for item in value:
        if isinstance(item, str):
            items += split(expand(item, environ)) if "${" in item else [expand(item, environ)]
        else:
            items.append(item)
    return items


def used(value: object, environ: Mapping[str, str]) -> list[str]:
    """The variables whose content stands in a value that `expand` or `expand_items` expanded."""
    if isinstance(value, list):
        return list(dict.fromkeys(name for item in value for name in used(item, environ)))
    found = _REFERENCE.finditer(value) if isinstance(value, str) else ()
    return list(dict.fromkeys(m["name"] for m in found if m["name"] and environ.get(m["name"])))


def split(text: str) -> list[object]:
    """Comma-separated items without the empty ones, or a JSON list where the text begins with `[`.

    Raises ExpansionError for text that begins so and is not one.
    """
    if text.lstrip().startswith("["):
        try:
            return list(json.loads(text))
        except ValueError:
            raise ExpansionError("begins with [ and is not a JSON list") from None
    return [item.strip() for item in text.split(",") if item.strip()]


def _replacement(match: re.Match[str], environ: Mapping[str, str]) -> str:
    if match["dollar"]:
        return "$"
    if match["name"] is None:
        raise ExpansionError("has ${ without NAME} or NAME:-default} after it; a plain dollar sign is $$")
    if match["default"] is not None:
        if "${" in match["default"]:
            raise ExpansionError("has a reference inside a reference's default, which is not supported")
        return environ.get(match["name"]) or match["default"]
    return environ[match["name"]]
