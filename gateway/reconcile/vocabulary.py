"""Reads the number of token ids that an engine's model knows: an id beyond it kills SGLang on a CPU.

No reply of SGLang 0.5.23 says it: neither /server_info nor /model_info. It takes `vocab_size` of the model's
config.json, and /model_info names the folder, so the same file is read here where this machine has it.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

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
