"""Chooses the hint that teaches a turn: the one that moves the answer's log-probabilities most.

Several judges may have had several ideas; where no teacher engine measured them, the scorer wrote them all.
They are measured here before the step, by the pass that is the teacher anyway: these weights, the stored
answer, the turn's temperature. A replay has the same hints and weights, and so the same choice.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from dukou.store.hints import AlternativeHint
from learner.hints.choose import by_effect
from learner.train import model
from learner.train.ledger import StepStore, Work
from learner.train.samples import Sample
from learner.train.weights import Weights


def choose_hints(step_store: StepStore, token: int, weights: Weights, work: Work) -> Work:
    """The work with each turn's most effective hint, which is also written to `samples`.

    Raises:
        dukou.store.processes.LeaseLostError: another step has begun.
    """
    if not work.alternatives:
        return work
    several = [sample for sample in work.samples if sample.turn_id in work.alternatives]
    best = {
        sample.turn_id: most_effective(weights, sample, work.alternatives[sample.turn_id])
        for sample in several
    }
    step_store.choose_hints(token, work, {turn: hint.hint_id for turn, hint in best.items()})
    samples = [_told(s, best[s.turn_id]) if s.turn_id in best else s for s in work.samples]
    return replace(work, samples=samples)


@torch.no_grad()
def most_effective(weights: Weights, sample: Sample, alternatives: list[AlternativeHint]) -> AlternativeHint:
    """The hint with the largest effect; where several have it, the last of them."""
    untold = _logprobs(weights, sample)
    told = {
        n: _logprobs(weights, _told(sample, alternative).as_hinted())
        for n, alternative in enumerate(alternatives)
    }
    return alternatives[by_effect(told, untold)[-1]]


def _told(sample: Sample, hint: AlternativeHint) -> Sample:
    return replace(sample, hinted_prompt=np.asarray(hint.prompt_ids, np.int64))


def _logprobs(weights: Weights, sample: Sample) -> npt.NDArray[np.float32]:
    """(T,), one sequence at a time: no other one's padding changes a digit of what is compared."""
    scored: npt.NDArray[np.float32] = model.answers(weights.model, [sample]).logprobs.float().cpu().numpy()
    return scored
