"""Reads the tensors of a safetensors file from its header alone: no tensor library, no tensor data.

file   = header length u64 | header (JSON) | data        (little-endian)
header = {name: {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, "__metadata__": {…}}
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from dukou.errors import DukouError

_LENGTH = struct.Struct("<Q")
_LONGEST_HEADER = 100 * 2**20  # the format's own limit, in bytes


class UnreadableTensorsError(DukouError, ValueError):
    """A safetensors file is cut short or is none."""


@dataclass(frozen=True, slots=True)
class Tensor:
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor and where its numbers lie."""

    tensor: Tensor
    file: Path
    begin: int  # bytes from the file's start
    length: int  # bytes

    def read(self) -> bytes:
        with self.file.open("rb") as file:
            file.seek(self.begin)
            return file.read(self.length)


def read_folder(folder: Path) -> dict[str, Tensor]:
    """Every tensor of every *.safetensors file in a folder, by name. Raises as `stored` does."""
    return {name: entry.tensor for name, entry in stored(folder).items()}


def read_file(path: Path) -> dict[str, Tensor]:
    """The tensors of one file, by name. Raises UnreadableTensorsError."""
    return {name: entry.tensor for name, entry in _stored_in(path).items()}


def stored(folder: Path) -> dict[str, Stored]:
    """Where every tensor of a folder lies.

    Raises:
        UnreadableTensorsError: there is no such file, or one of them is cut short or broken.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UnreadableTensorsError(f"{folder} holds no .safetensors file")
    found: dict[str, Stored] = {}
    for file in files:
        found.update(_stored_in(file))
    return found


def _stored_in(path: Path) -> dict[str, Stored]:
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(_LENGTH.size)
        if len(start) < _LENGTH.size:
            raise UnreadableTensorsError(f"{path.name} is cut short: {size} bytes")
        (length,) = _LENGTH.unpack(start)
        if length > min(_LONGEST_HEADER, size - _LENGTH.size):
            raise UnreadableTensorsError(f"{path.name} is cut short or no safetensors file")
        header = _parse(path.name, file.read(length))
    header.pop("__metadata__", None)
    data = _LENGTH.size + length
    try:
        found = {name: _entry(path, data, entry) for name, entry in header.items()}
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise UnreadableTensorsError(f"{path.name} has a header that is no safetensors header") from error
    ends = max((entry.begin + entry.length for entry in found.values()), default=data)
    if ends != size:
        raise UnreadableTensorsError(
            f"{path.name} should hold {ends - data} bytes of tensors and holds {size - data}"
        )
    return found


def _entry(path: Path, data: int, entry: dict[str, Any]) -> Stored:
    begin, end = entry["data_offsets"]
    return Stored(Tensor(entry["dtype"], tuple(entry["shape"])), path, data + begin, end - begin)


def _parse(name: str, header: bytes) -> dict[str, Any]:
    try:
        parsed = orjson.loads(header)
    except orjson.JSONDecodeError as error:
        raise UnreadableTensorsError(f"{name} has a header that is no JSON") from error
    if not isinstance(parsed, dict):
        raise UnreadableTensorsError(f"{name} has a header that is no JSON object")
    return parsed
