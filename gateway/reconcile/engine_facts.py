"""What each engine was started with: asked once in each of its lives, and again while a part is unknown.

Reads an engine's sampling defaults: what it takes for the fields that a chat request leaves out.

With `--sampling-defaults model`, which is its own choice, SGLang takes them from the `generation_config.json`
of the folder that it was started with: a weight update or an adapter changes nothing in it. No reply tells
them. `/server_info` says where they come from, and the file is read where this host can see it. They hold for
`/v1/chat/completions` only.

Reads the number of token ids that an engine's model knows: an id beyond it kills SGLang on a CPU.

No reply of SGLang 0.5.23 says it: neither /server_info nor /model_info. It takes `vocab_size` of the model's
config.json, and /model_info names the folder, so the same file is read here where this machine has it.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from dukou.errors import DukouError
from gateway.drain.sampling import DEFAULT_FIELDS
from gateway.reconcile.decide import Route
from gateway.reconcile.sglang import Control, ControlError, Health, ServerInfo
from gateway.routes import EngineFacts, ToolCalling

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
    found = {name: config[name] for name in DEFAULT_FIELDS if config.get(name) is not None}
    for name, value in found.items():
        if not _is_number(value):
            raise ValueError(f"has a {name} that is no finite number")
    return found


def _is_number(value: Any) -> bool:
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:
        return False


#: Where the language model's part of a multimodal configuration stands.
_INNER = ("text_config", "llm_config", "language_config", "thinker_config")
_NAMES = ("vocab_size", "vision_vocab_size")


def size_in(config: Mapping[str, Any]) -> int | None:
    """The size that a config.json states; the largest where several are there. None: it states none."""
    sizes = [
        part[name]
        for part in _parts(config)
        for name in _NAMES
        if isinstance(part.get(name), int) and part[name] > 0
    ]
    return max(sizes, default=None)


def _parts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield config
    for name in _INNER:
        inner = config.get(name)
        if isinstance(inner, dict):
            yield from _parts(inner)


class Vocabularies:
    """The sizes by engine URL; a file is read again when it has changed."""

    def __init__(self) -> None:
        self._sizes: dict[str, int | None] = {}
        self._read: dict[Path, tuple[int, int | None]] = {}  # file → its mtime, what it says

    def size(self, url: str) -> int | None:
        """None: unknown."""
        return self._sizes.get(url)

    def knows(self, url: str) -> bool:
        """Whether this engine's folder was looked for, with or without success."""
        return url in self._sizes

    def forget(self, url: str) -> None:
        self._sizes.pop(url, None)

    def saw(self, url: str, *folders: str | Path | None) -> None:
        """The engine serves the model of these folders: the first that says a size says the engine's.

        Without any the engine did not say what it serves, and what is known of it stays.
        """
        if folders and folders[0] is not None:
            found = (self._of(Path(folder)) for folder in folders if folder is not None)
            self._sizes[url] = next((size for size in found if size is not None), None)

    def _of(self, folder: Path) -> int | None:
        if not folder.is_absolute():  # a model hub's name, or relative to wherever the engine was started
            return None
        file = folder / "config.json"
        try:
            written = file.stat().st_mtime_ns
            if self._read.get(file, (None, None))[0] != written:
                config = orjson.loads(file.read_bytes())
                self._read[file] = written, size_in(config) if isinstance(config, dict) else None
            return self._read[file][1]
        except (OSError, orjson.JSONDecodeError):
            return None


_RETRY_SECONDS = 10.0  # after which an engine of which something is unknown is asked again


@dataclass(frozen=True, slots=True)
class _Known:
    """What one engine said. None: unknown."""

    asked_at: float
    tool_calling: ToolCalling | None = None
    sampling_defaults: Mapping[str, Any] | None = None
    problem: str | None = None  # why its sampling defaults are unknown


class EngineFactsPoller:
    """Asks engines for `/server_info`, one request for all facts, and remembers what they said."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self.vocabularies = Vocabularies()

    def look(self, control: Control, health: Health, dialect: str | None) -> None:
        """Asks an SGLang that is ready and of which something is unknown.

        An engine that is gone is forgotten: it may come back with other settings.
        """
        if health in (Health.DEAD, Health.STARTING):
            self._known.pop(control.url, None)
        if health is Health.READY and dialect == "sglang" and self._is_due(control.url):
            self._known[control.url] = self._ask(control)

    def facts(self, url: str) -> EngineFacts:
        """What is known of the engine at `url`."""
        known = self._known.get(url)
        vocab_size = self.vocabularies.size(url)
        if known is None:
            return EngineFacts(vocab_size=vocab_size)
        return EngineFacts(known.sampling_defaults, vocab_size, known.tool_calling)

    def with_reason(self, url: str, route: Route) -> Route:
        """The route, with the reason where the sampling defaults of a ready engine are unknown."""
        known = self._known.get(url)
        if route.state != "ready" or route.reason is not None or known is None or known.problem is None:
            return route
        reason = f"what it takes for sampling fields that a request leaves out is not known: {known.problem}"
        return replace(route, reason=reason)

    def _is_due(self, url: str) -> bool:
        known = self._known.get(url)
        return known is None or (
            known.sampling_defaults is None and self._clock() - known.asked_at >= _RETRY_SECONDS
        )

    def _ask(self, control: Control) -> _Known:
        now = self._clock()
        try:
            info = control.server_info()
        except ControlError as error:  # what it said earlier in this life still holds
            earlier = self._known.get(control.url, _Known(now))
            return replace(earlier, asked_at=now, problem=str(error))
        tool_calling = {"parser": info.tool_call_parser, "grammar": info.grammar_backend}
        try:
            return _Known(now, tool_calling, read(info))
        except UnknownDefaultsError as error:
            return _Known(now, tool_calling, problem=str(error))
