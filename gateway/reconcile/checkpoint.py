"""Checks a checkpoint before any engine is told of it: complete, readable, finite, the base model's shapes.

SGLang dies on a checkpoint of another shape, silently skips a tensor that is misspelt, and crashes at the
first use of an adapter that does not fit; so nothing reaches it that was not compared with the base model.

Reads the tensors of a safetensors file from its header alone: no tensor library, no tensor data.

file   = header length u64 | header (JSON) | data        (little-endian)
header = {name: {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, "__metadata__": {…}}

Finds NaN and infinities in a checkpoint, from the bytes alone.

Checks that a version has its base model's tokenizer, chat template and configuration.

An engine keeps its own tokenizer when weights are swapped. A version that was trained with another one would
be served with wrong ids, which only its answers would show.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
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


#: dtype → (unsigned integer of the same size, its exponent bits: all set in NaN and the infinities).
_EXPONENTS: dict[str, tuple[str, int]] = {
    "BF16": ("<u2", 0x7F80),
    "F16": ("<u2", 0x7C00),
    "F32": ("<u4", 0x7F80_0000),
    "F64": ("<u8", 0x7FF0_0000_0000_0000),
}


def values_problem(tensors: Mapping[str, Stored]) -> str | None:
    """The sentence that names a tensor with a value that is not finite; None: all are. Reads every byte."""
    for name, stored in tensors.items():
        if not is_finite(stored.tensor.dtype, stored.read()):
            return f"its tensor {name} holds a value that is not finite"
    return None


def is_finite(dtype: str, data: bytes) -> bool:
    """True also for a dtype that has no infinities."""
    if dtype not in _EXPONENTS or not data:
        return True
    word, exponent = _EXPONENTS[dtype]
    bits = np.frombuffer(data, dtype=word)
    return not bool(((bits & exponent) == exponent).any())


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


MARKER = "COMPLETE"
_TIED_HEAD = "lm_head.weight"
_ADAPTER_PREFIX = "base_model.model."
#: What an adapter may ask for that an engine would leave out without a word.
_NOT_SERVED = {"use_dora": (None, False), "bias": (None, "none"), "modules_to_save": (None, [])}

#: An engine fuses these: the first is taken only together with the others.
_TOGETHER = {
    "q_proj": ("v_proj",),
    "k_proj": ("q_proj", "v_proj"),
    "v_proj": ("q_proj",),
    "up_proj": ("gate_proj",),
}


class BadCheckpointError(DukouError):
    """A checkpoint must not reach an engine; the message is the sentence that says why."""


def check(folder: Path, form: str, base: Path) -> dict[str, Stored]:
    """Compares a checkpoint with the base model's folder; returns where its tensors lie.

    `form`: full | adapter. Reads every byte of it.

    Raises:
        BadCheckpointError: it is incomplete or does not fit; the sentence names the tensor or the file.
    """
    if not (folder / MARKER).is_file():
        raise BadCheckpointError(f"{folder} has no {MARKER} marker: it was not written to its end")
    needed = "adapter_config.json" if form == "adapter" else "config.json"
    if not (folder / needed).is_file():
        raise BadCheckpointError(f"{folder} has no {needed}")
    try:
        ours, theirs = stored(folder), read_folder(base)
        problem = (
            _shape_problem(folder, form, base, {name: entry.tensor for name, entry in ours.items()}, theirs)
            or likeness_problem(folder, base, form)
            or values_problem(ours)
        )
    except (UnreadableTensorsError, OSError, ValueError) as error:
        raise BadCheckpointError(str(error)) from error
    if problem is not None:
        raise BadCheckpointError(problem)
    return ours


def _shape_problem(
    folder: Path, form: str, base: Path, ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]
) -> str | None:
    if form == "adapter":
        config = _read_json(folder / "adapter_config.json")
        return _config_problem(config) or adapter_problem(ours, theirs, _rank(config))
    quantised = quantisation(base)
    if quantised is not None:
        return f'the base model is quantised ({quantised}): only publish.form = "adapter" fits it'
    return full_problem(ours, theirs, tied=is_tied(base))


def full_problem(ours: Mapping[str, Tensor], base: Mapping[str, Tensor], *, tied: bool) -> str | None:
    """The reason why these tensors cannot replace the base model's; None where they can.

    `tied`: the head is the embedding, so that either of the two may be written once or twice.
    """
    optional = {_TIED_HEAD} if tied else set()
    missing = sorted(base.keys() - ours.keys() - optional)
    extra = sorted(ours.keys() - base.keys() - optional)
    if missing:
        also = f" and has {extra[0]}, which the base model has not" if extra else ""
        return f"it lacks the tensor {missing[0]}{_and_more(missing)}{also}"
    if extra:
        return f"it has the tensor {extra[0]}{_and_more(extra)}, which the base model has not"
    for name, tensor in ours.items():
        wanted = base.get(name)
        if wanted is not None and tensor != wanted:
            return f"its tensor {name} is {_show(tensor)}, the base model's is {_show(wanted)}"
    return None


def adapter_problem(ours: Mapping[str, Tensor], base: Mapping[str, Tensor], rank: int | None) -> str | None:
    """The reason why this PEFT adapter does not fit the base model; None where it does.

    For a base weight [out, in]: `lora_A` is [rank, in] and `lora_B` [out, rank].
    """
    if rank is None:
        return "its adapter_config.json states no rank (r)"
    if not ours:
        return "it holds no tensors"
    for name, tensor in ours.items():
        module, _, side = name.removeprefix(_ADAPTER_PREFIX).rpartition(".lora_")
        weight = base.get(f"{module}.weight")
        if side not in ("A.weight", "B.weight") or weight is None:
            return f"its tensor {name} belongs to no weight of the base model"
        twin = f"{name.removesuffix(side)}{'B' if side[0] == 'A' else 'A'}.weight"
        if twin not in ours:
            return f"it lacks the tensor {twin}"
        out, into = weight.shape
        wanted = (rank, into) if side[0] == "A" else (out, rank)
        if tensor.shape != wanted:
            return f"its tensor {name} is {list(tensor.shape)}, it should be {list(wanted)}"
        alone = _lacks_of_fused(name, module, ours, base)
        if alone is not None:
            return f"its tensor {name} comes without {alone}: engines fuse the two"
    return None


def _lacks_of_fused(
    name: str, module: str, ours: Mapping[str, Tensor], base: Mapping[str, Tensor]
) -> str | None:
    """The tensor without which an engine refuses this one, or leaves it out; None: all are there."""
    stem, _, leaf = module.rpartition(".")
    for other in _TOGETHER.get(leaf, ()):
        partner = name.replace(f".{leaf}.", f".{other}.")
        if f"{stem}.{other}.weight" in base and partner not in ours:
            return partner
    return None


def is_tied(base: Path) -> bool:
    """Returns True where a model's head is its embedding."""
    return _read_json(base / "config.json").get("tie_word_embeddings") is True


def _config_problem(config: Mapping[str, object]) -> str | None:
    for key, served in _NOT_SERVED.items():
        if config.get(key) not in served:
            return f"its adapter_config.json has {key} = {config[key]!r}, which engines leave out"
    return None


def _rank(config: Mapping[str, object]) -> int | None:
    rank = config.get("r")
    return rank if isinstance(rank, int) and rank > 0 else None


def _read_json(path: Path) -> dict[str, object]:
    try:
        parsed = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise BadCheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(parsed, dict):
        raise BadCheckpointError(f"{path} is no JSON object")
    return parsed


def _and_more(names: Iterable[str]) -> str:
    more = len(list(names)) - 1
    return f" (and {more} more)" if more else ""


def _show(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"
