"""Folders that are there as a whole or not at all: written beside, synced, marked, renamed.

Checkpoints: what the next step depends on, and what the tables need to know of this one.

checkpoints/<policy>/<step number>/
    masters.safetensors   float32 adapter or weights
    optimizer.pt          AdamW's state and torch's random state
    record.json           what the tables say of the step: batch, version, parent, probe, metrics
    baseline.json         the running baseline after the batch
    COMPLETE

What stays on disk: the newest few, the live version, and the one that training goes on from.
"""

import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from dukou.store.batches import BaselineState, Metrics
from dukou.store.versions import Form, Probe
from learner.train.weights import Weights

#: The last file written. A folder without it was left by a crash and counts as absent.
MARKER = "COMPLETE"


@contextmanager
def whole(final: Path) -> Iterator[Path]:
    """Yields an empty folder to write into; when the block ends well, it is `final`, durably.

    What was at `final` before is replaced. When the block raises, nothing has changed.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    for left in final.parent.glob(f".{final.name}.*.partial"):
        shutil.rmtree(left)
    beside = final.with_name(f".{final.name}.{os.getpid()}.partial")
    beside.mkdir()
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, beside, ignore_errors=True)
        yield beside
        (beside / MARKER).touch()
        for path in [*beside.rglob("*"), beside]:
            _sync(path)
        undo.pop_all()
    if final.exists():
        shutil.rmtree(final)
    beside.rename(final)
    _sync(final.parent)


def is_complete(folder: Path) -> bool:
    return (folder / MARKER).is_file()


def numbered(parent: Path) -> dict[int, Path]:
    """The complete folders in `parent` that have a number for a name, by number, ascending."""
    if not parent.is_dir():
        return {}
    found = [
        (int(path.name), path) for path in parent.iterdir() if path.name.isdecimal() and is_complete(path)
    ]
    return dict(sorted(found))


def remove(folder: Path) -> None:
    """Deletes a folder; the marker goes first, so that a crash leaves no half of it that looks whole."""
    (folder / MARKER).unlink(missing_ok=True)
    shutil.rmtree(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
    with whole(final) as beside:
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
    if not is_complete(checkpoint):
        raise FileNotFoundError(f"the checkpoint {checkpoint} is gone: it was pruned or removed")
    weights.load(load_file(checkpoint / "masters.safetensors"))
    state = torch.load(checkpoint / "optimizer.pt", weights_only=True)
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])


def expendable(present: Iterable[int], newest: int, protected: Collection[int]) -> list[int]:
    """The numbers that may go: all but the `newest` highest and the protected ones."""
    kept = set(sorted(present)[-newest:]) | set(protected)
    return sorted(set(present) - kept)


def prune(parent: Path, newest: int, protected: Collection[int]) -> list[int]:
    """Deletes what is expendable among the complete numbered folders of `parent`; returns their numbers."""
    present = numbered(parent)
    gone = expendable(present, newest, protected)
    for number in gone:
        remove(present[number])
    return gone
