"""What engines load: merged weights shaped exactly like the base's files, or a PEFT adapter.

Checked before anybody hears of it: an engine that is given wrong shapes may take half of them, or die at the
first request."""

import json
import shutil
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from dukou.errors import DukouError
from dukou.settings.learning import TrainerSettings
from learner.train import files
from learner.train.weights import LoraLinear, Weights

#: Weight files of other formats: they would hold the base's weights beside the new ones.
OTHER_WEIGHTS = {".bin", ".pt", ".pth", ".gguf", ".onnx", ".h5", ".msgpack"}

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class ExportError(DukouError):
    """The weights cannot be served in the place of the base model; the message names the tensor."""


def weight_files(base: Path) -> list[Path]:
    """The base's safetensors files. Raises ExportError where it has none."""
    files = sorted(base.glob("*.safetensors"))
    if not files:
        raise ExportError(f"{base} holds no safetensors files")
    return files


def check_tied(base: Path) -> None:
    """Raises ExportError where config.json ties head and embedding, but the files hold two that differ."""
    if not json.loads((base / "config.json").read_text()).get("tie_word_embeddings", False):
        return
    found: dict[str, Tensor] = {}
    for path in weight_files(base):
        with safe_open(path, framework="pt") as file:
            found.update({name: file.get_tensor(name) for name in (EMBEDDING, HEAD) if name in file.keys()})  # noqa: SIM118
    if len(found) == 2 and not torch.equal(found[EMBEDDING], found[HEAD]):
        raise ExportError(f"config.json says that {HEAD} is {EMBEDDING}, but the two differ in {base}")


def write_merged(final: Path, base: Path, weights: Weights) -> None:
    """A model folder with the base's files, names, shapes and dtypes. Raises ExportError."""
    tensors = weights.merged()
    with files.whole(final) as beside:
        for source in weight_files(base):
            _write_like(source, beside / source.name, tensors)
        for path in base.iterdir():
            if (
                path.is_file()
                and path.suffix not in {".safetensors", *OTHER_WEIGHTS}
                and path.name != files.MARKER
            ):
                shutil.copyfile(path, beside / path.name)


def _write_like(source: Path, target: Path, tensors: dict[str, Tensor]) -> None:
    written: dict[str, Tensor] = {}
    with safe_open(source, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118
            old = file.get_tensor(name)
            if name not in tensors:
                raise ExportError(f"the base's {name} is no weight of the loaded model")
            new = tensors[name].detach().to("cpu", old.dtype, copy=True).contiguous()
            if new.shape != old.shape:
                raise ExportError(f"{name} is {tuple(new.shape)}, in the base {tuple(old.shape)}")
            _check_finite(name, new)
            written[name] = new
    save_file(written, target, metadata={"format": "pt"})


def write_adapter(
    final: Path, base: Path, adapters: dict[str, LoraLinear], settings: TrainerSettings
) -> None:
    """A PEFT adapter folder in the dtype that engines hold weights in. Raises ExportError."""
    tensors: dict[str, Tensor] = {}
    for name, adapter in adapters.items():
        for leaf, master in (("lora_A", adapter.a), ("lora_B", adapter.b)):
            key = f"base_model.model.{name}.{leaf}.weight"
            tensors[key] = master.detach().to("cpu", adapter.served).contiguous()
            _check_finite(key, tensors[key])
    description = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": settings.lora_rank,
        "lora_alpha": settings.lora_alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted(settings.lora_targets),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    with files.whole(final) as beside:
        save_file(tensors, beside / "adapter_model.safetensors", metadata={"format": "pt"})
        (beside / "adapter_config.json").write_text(json.dumps(description, indent=2))


def _check_finite(name: str, tensor: Tensor) -> None:
    if not bool(tensor.isfinite().all()):
        raise ExportError(f"{name} holds a value that is not finite")
