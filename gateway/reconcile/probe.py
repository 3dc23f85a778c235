"""Compares what an engine computes with what the trainer computed: log-probabilities of fixed prompts.

Catches weights that were dropped, tied wrongly or half read. Two runs of the same tokens differ by about 0.05
nats, so it cannot catch more than gross faults.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dukou.store.versions import BadProbeError, Probe, ProbePrompt
from gateway.reconcile.tensors import Tensor


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
