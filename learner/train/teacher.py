"""The teacher: the model itself under the prompts with a hint in them, with the weights before the step."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from learner.train import model
from learner.train.sample import Sample
from learner.train.weights import Weights


@dataclass(frozen=True, slots=True)
class Teacher:
    """Per answer token, laid end to end, at the turns' temperatures: log-probability of the token, (ΣT,); ids
    and log-probabilities of the K likeliest tokens there, (ΣT, K). NaN (and id 0) where there is no hint."""

    logprobs: Tensor
    likeliest: Tensor
    likely: Tensor


def ask(weights: Weights, samples: Sequence[Sample], count: int) -> Teacher:
    """Scores the stored answers under the hinted prompts; `count` is K."""
    device = model.head(weights.model).device
    told = torch.cat([torch.full((s.scored,), s.hinted_prompt is not None) for s in samples]).to(device)
    teacher = Teacher(
        torch.full((len(told),), torch.nan, device=device),
        torch.zeros(len(told), count, dtype=torch.long, device=device),
        torch.full((len(told), count), torch.nan, device=device),
    )
    hinted = [sample.as_hinted() for sample in samples if sample.hinted_prompt is not None]
    if hinted:
        found = model.taught(weights.model, hinted, count)
        teacher.logprobs[told] = found.logprobs
        teacher.likeliest[told] = found.likeliest
        teacher.likely[told] = found.likely
    return teacher
