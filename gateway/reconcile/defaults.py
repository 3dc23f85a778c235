"""Reads an engine's sampling defaults: what it takes for the fields that a chat request leaves out.

With `--sampling-defaults model`, which is its own choice, SGLang takes them from the `generation_config.json`
of the folder that it was started with: a weight update or an adapter changes nothing in it. No reply tells
them. `/server_info` says where they come from, and the file is read where this host can see it. They hold for
`/v1/chat/completions` only.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dukou.errors import DukouError
from gateway.drain.effective import FIELDS
from gateway.reconcile.control import ServerInfo

FILE = "generation_config.json"
#: What `--preferred-sampling-params` adds to a chat answer: only what no chat request sets by itself.
_PREFERRED = ("json_schema", "structural_tag", "beam_width")
_LARGEST = 2**20  # bytes of the file


class UnknownDefaultsError(DukouError):
    """The defaults are not known; the message says why."""


def read(info: ServerInfo) -> dict[str, Any]:
    """What an engine takes for left-out fields of a chat request; empty: nothing, so plain temperature 1.

    Raises:
        UnknownDefaultsError: it does not say, or its model's folder is not to be seen from here.
    """
    return {**_of_model(info), **preferred(info.preferred_sampling_params)}


def _of_model(info: ServerInfo) -> dict[str, Any]:
    if info.sampling_defaults == "openai":
        return {}
    if info.sampling_defaults != "model":
        raise UnknownDefaultsError("it does not say --sampling-defaults")
    if not info.model_path:
        raise UnknownDefaultsError("it does not say its model's folder")
    return recommended(Path(info.model_path))


def preferred(params: Mapping[str, Any]) -> dict[str, Any]:
    """The part of `--preferred-sampling-params` that holds for chat, where a request overrides all else."""
    added = {name: params[name] for name in _PREFERRED if params.get(name)}
    if added.get("beam_width") == 1:
        del added["beam_width"]
    return added


def recommended(folder: Path) -> dict[str, Any]:
    """What a model's folder recommends for FIELDS; empty where it has no such file.

    Raises:
        UnknownDefaultsError: the folder or its file cannot be read from here, or makes no sense.
    """
    file = folder / FILE
    if not folder.is_absolute():
        raise UnknownDefaultsError(f"its model {str(folder)!r} is no absolute path; start it with one")
    try:
        if not (folder / "config.json").is_file():
            raise UnknownDefaultsError(f"this host sees no model in {folder}")
        if not file.is_file():
            return {}
        with file.open("rb") as opened:
            content = opened.read(_LARGEST + 1)
    except OSError as error:
        raise UnknownDefaultsError(f"{file} cannot be read: {error.strerror or error}") from error
    try:
        return parse(content)
    except ValueError as error:
        raise UnknownDefaultsError(f"{file} {error}") from error


def parse(content: bytes) -> dict[str, Any]:
    """The values of FIELDS in a `generation_config.json`; null counts as missing, as it does for SGLang.

    Raises:
        ValueError: the file is too large, no JSON object, or a value is no finite number.
    """
    if len(content) > _LARGEST:
        raise ValueError(f"has more than {_LARGEST} bytes")
    try:
        config = json.loads(content.decode())
    except (ValueError, RecursionError):
        raise ValueError("is no JSON") from None
    if not isinstance(config, dict):
        raise ValueError("is no JSON object")  # noqa: TRY004 (a bad file, not a bad call)
    found = {name: config[name] for name in FIELDS if config.get(name) is not None}
    for name, value in found.items():
        if not _is_number(value):
            raise ValueError(f"has a {name} that is no finite number")
    return found


def _is_number(value: Any) -> bool:
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:
        return False
