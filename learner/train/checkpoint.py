"""Checkpoints: what the next step depends on, and what the tables need to know of this one.

checkpoints/<policy>/<step number>/
    masters.safetensors   float32 adapter or weights
    optimizer.pt          AdamW's state and torch's random state
    record.json           what the tables say of the step: batch, version, parent, probe, metrics
    baseline.json         the running baseline after the batch
    COMPLETE
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from learner.train import folder
from learner.train.weights import Weights
from store.versions import Form


@dataclass(frozen=True, slots=True)
class Record:
    """What the `steps` and `versions` rows of a step say. Kept in the checkpoint, so that a step whose rows
    were lost in a crash is adopted, not trained again."""

    number: int
    batch_id: int
    turns: list[str]  # in order: a batch of another database may have the same id
    version: int
    parent: int
    version_path: str
    form: Form
    probe: dict[str, Any]
    metrics: dict[str, float | None]
    seconds: float


def write(
    final: Path, weights: Weights, optimizer: torch.optim.Optimizer, record: Record, baseline: dict[str, Any]
) -> None:
    """Writes a checkpoint; when this returns, it is durable. `baseline` is the running baseline's state after
    the batch, kept beside the weights that it belongs to."""
    with folder.whole(final) as beside:
        masters = {name: master.detach().cpu().contiguous() for name, master in weights.masters.items()}
        save_file(masters, beside / "masters.safetensors")
        state = {"optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
        torch.save(state, beside / "optimizer.pt")
        (beside / "record.json").write_text(json.dumps(asdict(record)))
        (beside / "baseline.json").write_text(json.dumps(baseline))


def read_record(checkpoint: Path) -> Record:
    return Record(**json.loads((checkpoint / "record.json").read_text()))


def restore(checkpoint: Path, weights: Weights, optimizer: torch.optim.Optimizer) -> None:
    """Puts weights, optimizer and random state back, bit for bit.

    Raises FileNotFoundError where the checkpoint was pruned, ValueError where it is of another method.
    """
    if not folder.is_complete(checkpoint):
        raise FileNotFoundError(f"the checkpoint {checkpoint} is gone: it was pruned or removed")
    weights.load(load_file(checkpoint / "masters.safetensors"))
    state = torch.load(checkpoint / "optimizer.pt", weights_only=True)
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
