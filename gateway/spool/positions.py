"""How far each segment is drained, on disk. Written after the commit: what is read twice is written once."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path

import orjson

_log = logging.getLogger(__name__)


class Positions:
    """A JSON file of segment name → bytes, replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._saved: dict[str, int] = {}

    def load(self) -> dict[str, int]:
        """What was saved; empty where there is nothing that can be read: everything is then read again."""
        try:
            found = orjson.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except orjson.JSONDecodeError:
            _log.warning("%s cannot be read: all segments are read again", self._path.name)
            return {}
        is_offset = (isinstance(found, dict) and found) or {}
        return {
            str(name): offset for name, offset in is_offset.items() if isinstance(offset, int) and offset >= 0
        }

    def save(self, offsets: Mapping[str, int]) -> None:
        if dict(offsets) == self._saved:
            return
        beside = self._path.with_suffix(".tmp")
        beside.write_bytes(orjson.dumps(dict(offsets)))
        os.replace(beside, self._path)
        self._saved = dict(offsets)
