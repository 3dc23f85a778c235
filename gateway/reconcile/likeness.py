"""Checks that a version has its base model's tokenizer, chat template and configuration.

An engine keeps its own tokenizer when weights are swapped. A version that was trained with another one would
be served with wrong ids, which only its answers would show.
"""

from pathlib import Path
from typing import Any

import orjson

#: What turns text into ids and back. Compared byte for byte.
TOKENIZER = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)
_TOKENIZER_CONFIG = "tokenizer_config.json"
#: Keys of JSON files that say how the file was made, not what it means.
_NOTES = frozenset({"_name_or_path", "name_or_path", "transformers_version", "torch_dtype", "dtype"})


def likeness_problem(folder: Path, base: Path, form: str) -> str | None:
    """The change of a version that engines would not follow; None where there is none.

    An adapter folder may leave the files out; what it has must be the base model's.
    """
    for name in TOKENIZER:
        if _differs(folder / name, base / name, may_lack=form == "adapter"):
            return f"its {name} is not the base model's: an engine would go on with the old one"
    checked = (_TOKENIZER_CONFIG,) if form == "adapter" else (_TOKENIZER_CONFIG, "config.json")
    for name in checked:
        problem = _keys_problem(folder / name, base / name, may_lack=form == "adapter")
        if problem is not None:
            return problem
    return None


def quantisation(base: Path) -> str | None:
    """The method by which a base model's weights are quantised; None where they are not."""
    found = _json(base / "config.json").get("quantization_config")
    if not found:
        return None
    return str(found.get("quant_method", "unknown")) if isinstance(found, dict) else str(found)


def _differs(ours: Path, theirs: Path, *, may_lack: bool) -> bool:
    if not ours.is_file():
        return theirs.is_file() and not may_lack
    return not theirs.is_file() or ours.read_bytes() != theirs.read_bytes()


def _keys_problem(ours: Path, theirs: Path, *, may_lack: bool) -> str | None:
    if not ours.is_file() and may_lack:
        return None
    mine, base = _json(ours), _json(theirs)
    for key in sorted((mine.keys() | base.keys()) - _NOTES):
        if mine.get(key) != base.get(key):
            return f"its {ours.name} has another {key} than the base model's"
    return None


def _json(path: Path) -> dict[str, Any]:
    """Empty where there is no such file. Raises ValueError where it is no JSON object."""
    if not path.is_file():
        return {}
    parsed = orjson.loads(path.read_bytes())
    if isinstance(parsed, dict):
        return parsed
    raise ValueError(f"{path} is no JSON object")
