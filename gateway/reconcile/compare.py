"""Compares what an engine computes with what the trainer computed: log-probabilities of fixed prompts.

Catches weights that were dropped, tied wrongly or half read. Two runs of the same tokens differ by about 0.05
nats, so it cannot catch more than gross faults.

Compares an engine's tensors with a checkpoint's by their checksums. Pure.

On a CPU an engine's checksum of a tensor is the first eight bytes of the SHA-256 of its numbers, so it can be
computed from the checkpoint's files. An engine fuses some tensors and slices them over ranks; what it hashes
on a GPU is its own. There nothing can be compared, and nothing is concluded.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dukou.store.versions import BadProbeError, Probe, ProbePrompt
from gateway.reconcile.checkpoint import Stored, Tensor


@dataclass(frozen=True, slots=True)
class Difference:
    """Over all tokens of all prompts, in nats."""

    mean: float
    max: float


def parse(probe: Mapping[str, Any], vocabulary: int | None) -> list[ProbePrompt]:
    """The prompts of `versions.probe`. `vocabulary`: how many ids there are, where that is known.

    Raises:
        BadProbeError: it is malformed, or has an id outside the vocabulary, which would kill the engine.
    """
    prompts = list(Probe.decode(probe).prompts)
    for prompt in prompts:
        if len(prompt.ids) < 2 or len(prompt.logprobs) != len(prompt.ids) - 1:
            raise BadProbeError(f"its probe has {len(prompt.logprobs)} values for {len(prompt.ids)} ids")
        outside = [i for i in prompt.ids if i < 0 or (vocabulary is not None and i >= vocabulary)]
        if outside:
            raise BadProbeError(f"its probe has the id {outside[0]}, outside the vocabulary of {vocabulary}")
    if not prompts:
        raise BadProbeError("its probe has no prompts")
    return prompts


def vocabulary(tensors: Mapping[str, Tensor]) -> int | None:
    """The number of ids that a model knows: the rows of its embedding; None where it has no such tensor."""
    rows = (tensor.shape[0] for name, tensor in tensors.items() if name.endswith("embed_tokens.weight"))
    return next(rows, None)


def compare(prompts: Sequence[ProbePrompt], measured: Sequence[Sequence[float | None]]) -> Difference:
    """`measured`: the engine's log-probabilities of each prompt's ids[1:]. A value that is missing or no
    number makes the difference infinite: an engine that answers NaN must not serve."""
    gaps = [
        abs(ours - theirs) if theirs is not None and math.isfinite(theirs) else math.inf
        for prompt, values in zip(prompts, measured, strict=True)
        for ours, theirs in zip(prompt.logprobs, values, strict=True)
    ]
    return Difference(sum(gaps) / len(gaps), max(gaps))


#: The engine's fused module → the checkpoint's modules, in the order in which their rows lie.
_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class Agreement:
    """How an engine's tensors compare with the checkpoint's."""

    same: int  # tensors
    other: int
    first_other: str | None  # by name


def parts(name: str, known: Iterable[str], *, tied: bool) -> tuple[str, ...]:
    """The checkpoint's tensors that make up an engine's tensor; () where it has none by these names."""
    there = frozenset(known)
    if tied and name == _HEAD:
        return (_EMBEDDING,) if _EMBEDDING in there else ()
    if name in there:
        return (name,)
    for fused, modules in _FUSED.items():
        if f".{fused}." in name:
            found = tuple(name.replace(f".{fused}.", f".{module}.") for module in modules)
            return found if set(found) <= there else ()
    return ()


def expected(names: Iterable[str], tensors: Mapping[str, Stored], *, tied: bool) -> dict[str, str]:
    """The checksums that an engine on a CPU has of these tensors of its own. Reads every byte."""
    sums = {}
    for name in names:
        found = parts(name, tensors, tied=tied)
        if found:
            digest = hashlib.sha256()
            for part in found:
                digest.update(tensors[part].read())
            sums[name] = digest.hexdigest()[:16]
    return sums


def compare_checksums(wanted: Mapping[str, str], ranks: Sequence[Mapping[str, str]]) -> Agreement | None:
    """`ranks`: the engine's own checksums. None where it slices its tensors over several ranks."""
    if len(ranks) != 1:
        return None
    others = sorted(name for name, checksum in wanted.items() if ranks[0].get(name) != checksum)
    return Agreement(len(wanted) - len(others), len(others), others[0] if others else None)
