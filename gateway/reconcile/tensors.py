"""What a safetensors file holds, read from its header alone: no tensor library, no tensor data.

file   = header length u64 | header (JSON) | data        (little-endian)
header = {name: {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, "__metadata__": {…}}
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

_LENGTH = struct.Struct("<Q")
_LONGEST_HEADER = 100 * 2**20  # the format's own limit, in bytes


class UnreadableTensorsError(ValueError):
    """A safetensors file is cut short or is none."""


@dataclass(frozen=True, slots=True)
class Tensor:
    dtype: str
    shape: tuple[int, ...]


def read_folder(folder: Path) -> dict[str, Tensor]:
    """Every tensor of every *.safetensors file in a folder, by name.

    Raises:
        UnreadableTensorsError: there is no such file, or one of them is cut short or broken.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UnreadableTensorsError(f"{folder} holds no .safetensors file")
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors.update(read_file(file))
    return tensors


def read_file(path: Path) -> dict[str, Tensor]:
    """The tensors of one file, by name. Raises UnreadableTensorsError."""
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
    data = size - _LENGTH.size - length
    try:
        ends = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        tensors = {name: Tensor(entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()}
    except (KeyError, TypeError, IndexError) as error:
        raise UnreadableTensorsError(f"{path.name} has a header that is no safetensors header") from error
    if ends != data:
        raise UnreadableTensorsError(f"{path.name} should hold {ends} bytes of tensors and holds {data}")
    return tensors


def _parse(name: str, header: bytes) -> dict[str, Any]:
    try:
        parsed = orjson.loads(header)
    except orjson.JSONDecodeError as error:
        raise UnreadableTensorsError(f"{name} has a header that is no JSON") from error
    if not isinstance(parsed, dict):
        raise UnreadableTensorsError(f"{name} has a header that is no JSON object")
    return parsed
