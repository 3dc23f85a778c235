"""The teacher: the model itself under the prompts with a hint in them, with `loss.teacher`'s weights."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from learner.train import model
from learner.train.model import HfModel
from learner.train.sample import Sample, pack
from learner.train.weights import Weights
from store.config_learning import Loss


@dataclass(frozen=True, slots=True)
class Teacher:
    """Per scored token, laid end to end, at the turns' temperatures: log-probability of the token, (ΣT,); ids
    and log-probabilities of the K likeliest tokens there, (ΣT, K). NaN (and id 0) where there is no hint."""

    logprobs: Tensor
    likeliest: Tensor
    likely: Tensor


def whose(weights: Weights, settings: Loss) -> AbstractContextManager[HfModel]:
    """The model that teaches (`loss.teacher`). Raises RuntimeError where it is the base and none is kept."""
    if settings.taught_by_base:
        return weights.reference()
    return nullcontext(weights.model)


def ask(teaching: HfModel, samples: Sequence[Sample], count: int, budget: int) -> Teacher:
    """Scores the stored answers under the hinted prompts, which differ where prompts without their hints are
    alike; `count` is K, `budget` tokens of a forward pass."""
    device = model.head(teaching).device
    places = torch.cat([torch.full((s.scored,), number) for number, s in enumerate(samples)]).to(device)
    teacher = Teacher(
        torch.full((len(places),), torch.nan, device=device),
        torch.zeros(len(places), count, dtype=torch.long, device=device),
        torch.full((len(places), count), torch.nan, device=device),
    )
    told = [number for number, sample in enumerate(samples) if sample.hinted_prompt is not None]
    hinted = [samples[number].as_hinted() for number in told]
    for rows in pack([len(sample.ids) for sample in hinted], budget):
        found = model.taught(teaching, [hinted[row] for row in rows], count)
        where = torch.cat([(places == told[row]).nonzero()[:, 0] for row in rows])
        teacher.logprobs[where] = found.logprobs
        teacher.likeliest[where] = found.likeliest
        teacher.likely[where] = found.likely
    return teacher
