"""What a step does to answers that no step has trained, by forward passes: before a version may be live.

What people or a judge said of these answers is known. A version under which the good ones become much less
likely, or that is far from the one before after a single step, would serve that to everybody.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from learner.train import loss, model
from learner.train.metrics import Metrics
from learner.train.model import HfModel
from learner.train.samples import Sample, pack
from learner.train.weights import Weights

#: Fewer turns say too little.
LEAST_TURNS = 4
#: `steps.metrics` of a version that was tried on nothing.
UNKNOWN: Metrics = {"held/kl_last": None, "held/kl_base": None, "held/good": None, "held/bad": None}


def begin(
    weights: Weights, samples: Sequence[Sample], budget: int, *, base: bool
) -> Callable[[], dict[str, float | None]]:
    """Measures under the weights as they are; what it returns measures after the step and compares.

    `base`: also with the base model, which costs one more pass. `budget`: tokens of one forward pass.
    """
    fitting = [sample for sample in samples if int(sample.ids.max()) < model.vocabulary(weights.model)]
    if len(fitting) < LEAST_TURNS:
        return lambda: {"held/turns": float(len(fitting)), **UNKNOWN}
    before = _logprobs(nullcontext(weights.model), fitting, budget)

    def end() -> dict[str, float | None]:
        after = _logprobs(nullcontext(weights.model), fitting, budget)
        reference = _logprobs(weights.reference(), fitting, budget) if base else None
        return compare([sample.reward for sample in fitting], before, after, reference)

    return end


def compare(
    rewards: Sequence[float], before: Sequence[Tensor], after: Sequence[Tensor], base: Sequence[Tensor] | None
) -> dict[str, float | None]:
    """Each answer's log-probabilities (T,) before the step, after it, and under the base model.

    `held/kl_last`, `held/kl_base`: k3 in nats a token. `held/good`, `held/bad`: the mean over the answers
    scored above and below 0 of how much likelier each became, in nats a token; None where there is none.
    """
    changes = [float((new - old).mean()) for new, old in zip(after, before, strict=True)]
    new = torch.cat(list(after))
    return {
        "held/turns": float(len(rewards)),
        # The tokens were sampled near the weights before the step: KL(before ‖ after).
        "held/kl_last": float(loss.k3(torch.cat(list(before)), new).mean()),
        "held/kl_base": None if base is None else float(loss.k3(new, torch.cat(list(base))).mean()),
        "held/good": _mean(c for c, reward in zip(changes, rewards, strict=True) if reward > 0),
        "held/bad": _mean(c for c, reward in zip(changes, rewards, strict=True) if reward < 0),
    }


@torch.no_grad()
def _logprobs(under: AbstractContextManager[HfModel], samples: Sequence[Sample], budget: int) -> list[Tensor]:
    """Of every answer, in the order of `samples`."""
    found: dict[int, Tensor] = {}
    with under as scorer:
        for rows in pack([len(sample.ids) for sample in samples], budget):
            chosen = [samples[row] for row in rows]
            scored = model.answers(scorer, chosen).logprobs
            pieces = torch.split(scored, [sample.scored for sample in chosen])
            found.update(zip(rows, pieces, strict=True))
    return [found[row] for row in range(len(samples))]


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return statistics.fmean(known) if known else None
