"""Which of a turn's hints teaches: the one that moves the answer's log-probabilities most.

Several judges may have had several ideas; where no teacher engine measured them, the scorer wrote them all.
They are measured here before the step, by the pass that is the teacher anyway: these weights, the stored
answer, the turn's temperature. A replay has the same hints and weights, and so the same choice.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from learner.teach.choose import by_effect
from learner.train import model
from learner.train.ledger import Ledger, Work
from learner.train.sample import Sample
from learner.train.weights import Weights
from store.hints import Rival


def settle(ledger: Ledger, token: int, weights: Weights, work: Work) -> Work:
    """The work with each turn's most informative hint; it is also the one in `samples` from then on.

    Raises:
        store.leases.LeaseLostError: another step has begun.
    """
    if not work.rivals:
        return work
    several = [sample for sample in work.samples if sample.turn_id in work.rivals]
    best = {sample.turn_id: choose(weights, sample, work.rivals[sample.turn_id]) for sample in several}
    ledger.choose_hints(token, work, {turn: rival.hint_id for turn, rival in best.items()})
    samples = [_told(s, best[s.turn_id]) if s.turn_id in best else s for s in work.samples]
    return replace(work, samples=samples)


@torch.no_grad()
def choose(weights: Weights, sample: Sample, rivals: list[Rival]) -> Rival:
    """The hint with the largest effect; where several have it, the last of them."""
    untold = _logprobs(weights, sample)
    told = {n: _logprobs(weights, _told(sample, rival).as_hinted()) for n, rival in enumerate(rivals)}
    return rivals[by_effect(told, untold)[-1]]


def _told(sample: Sample, rival: Rival) -> Sample:
    return replace(sample, hinted_prompt=np.asarray(rival.prompt_ids, np.int64))


def _logprobs(weights: Weights, sample: Sample) -> npt.NDArray[np.float32]:
    """(T,), one sequence at a time: no other one's padding changes a digit of what is compared."""
    scored: npt.NDArray[np.float32] = model.answers(weights.model, [sample]).logprobs.float().cpu().numpy()
    return scored
