"""Versions that plainly differ: what is published in turns, each with the trainer's probe of it."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from bench.publishing.plant import MODULES, RANK, Plant
from dukou.store.versions import Probe
from learner.train import probe
from learner.train.model import HfModel, load, vocabulary

_NORM = "model.norm.weight"


def full(base: Path, place: Path, factor: float) -> Plant:
    """The base model with its last norm scaled: all logits change by that factor."""
    shutil.copytree(base, place)
    for file in place.glob("*.safetensors"):
        tensors = load_file(file)
        if _NORM in tensors:
            tensors[_NORM] = tensors[_NORM] * factor
            save_file(tensors, file, metadata={"format": "pt"})
    return Plant(place, _probe(load(place, torch.device("cpu")), base))


def adapter(base: Path, place: Path, seed: int) -> Plant:
    """A random LoRA adapter, large enough to be told from another one."""
    model = load(base, torch.device("cpu"))
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name.endswith(MODULES):
            a = torch.randn(RANK, module.in_features, generator=generator) / module.in_features**0.5
            b = torch.randn(module.out_features, RANK, generator=generator) * 0.3
            key = f"base_model.model.{name}"
            tensors[f"{key}.lora_A.weight"] = a.to(module.weight.dtype).contiguous()
            tensors[f"{key}.lora_B.weight"] = b.to(module.weight.dtype).contiguous()
            with torch.no_grad():
                module.weight += (b @ a).to(module.weight.dtype)
    place.mkdir()
    save_file(tensors, place / "adapter_model.safetensors", metadata={"format": "pt"})
    targets = sorted(name.rpartition(".")[2] for name in MODULES)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": targets, "bias": "none"}
    (place / "adapter_config.json").write_text(json.dumps(config))
    return Plant(place, _probe(model, base))


def _probe(model: HfModel, base: Path) -> Probe:
    return probe.measure(model, probe.prompts(base, vocabulary(model)))
