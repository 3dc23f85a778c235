"""Checkpoints: what the next step depends on, and what the tables need to know of this one.

checkpoints/<policy>/<step number>/
    masters.safetensors   float32 adapter or weights
    optimizer.pt          AdamW's state and torch's random state
    record.json           what the tables say of the step: batch, version, parent, probe, metrics
    baseline.json         the running baseline after the batch
    COMPLETE
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from dukou.store.batches import BaselineState, Metrics
from dukou.store.versions import Form, Probe
from learner.train import folder
from learner.train.weights import Weights


@dataclass(frozen=True, slots=True)
class StepRecord:
    """`record.json`: what the `steps` and `versions` rows of a step say. Kept in the checkpoint, so that a
    step whose rows were lost in a crash is adopted, not trained again."""

    number: int
    batch_id: int
    turns: list[str]  # in order: a batch of another database may have the same id
    version: int
    parent: int
    version_path: str
    form: Form
    probe: Probe
    metrics: Metrics
    seconds: float

    def encode(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)} | {"probe": self.probe.encode()}

    @classmethod
    def decode(cls, stored: Mapping[str, Any]) -> "StepRecord":
        """Fields that this release does not know are ignored. Raises KeyError for one that is missing,
        BadProbeError for a malformed probe."""
        known = {each.name: stored[each.name] for each in fields(cls)}
        return cls(**known | {"probe": Probe.decode(stored["probe"])})


def write(
    final: Path,
    weights: Weights,
    optimizer: torch.optim.Optimizer,
    record: StepRecord,
    baseline: BaselineState,
) -> None:
    """Writes a checkpoint; when this returns, it is durable. `baseline`: the running baseline after the
    batch."""
    with folder.whole(final) as beside:
        masters = {name: master.detach().cpu().contiguous() for name, master in weights.masters.items()}
        save_file(masters, beside / "masters.safetensors")
        state = {"optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
        torch.save(state, beside / "optimizer.pt")
        (beside / "record.json").write_text(json.dumps(record.encode()))
        (beside / "baseline.json").write_text(json.dumps(baseline.encode()))


def read_record(checkpoint: Path) -> StepRecord:
    return StepRecord.decode(json.loads((checkpoint / "record.json").read_text()))


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
