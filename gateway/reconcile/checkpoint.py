"""Checks a checkpoint before any engine is told of it: complete, readable, finite, the base model's shapes.

SGLang dies on a checkpoint of another shape, silently skips a tensor that is misspelt, and crashes at the
first use of an adapter that does not fit; so nothing reaches it that was not compared with the base model.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import orjson

from dukou.errors import DukouError
from gateway.reconcile.likeness import likeness_problem, quantisation
from gateway.reconcile.tensors import Stored, Tensor, UnreadableTensorsError, read_folder, stored
from gateway.reconcile.values import values_problem

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
