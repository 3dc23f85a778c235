"""The teacher: the model itself under the prompts with a hint in them, with `loss.teacher`'s weights."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from dukou.settings.learning import LossSettings
from learner.train import model
from learner.train.logprobs import TeacherScores
from learner.train.model import HfModel
from learner.train.samples import Sample, pack
from learner.train.weights import Weights


def teaching_model(weights: Weights, settings: LossSettings) -> AbstractContextManager[HfModel]:
    """The model that teaches (`loss.teacher`). Raises RuntimeError where it is the base and none is kept."""
    if settings.taught_by_base:
        return weights.reference()
    return nullcontext(weights.model)


def score_hinted(teaching: HfModel, samples: Sequence[Sample], count: int, budget: int) -> TeacherScores:
    """Scores the stored answers under the hinted prompts, laid end to end, at the turns' temperatures.

    Only samples with a hint are scored. `count`: K; `budget`: tokens of one forward pass. No rows are shared:
    hinted prompts differ where those without hints are alike.
    """
    device = model.head(teaching).device
    places = torch.cat([torch.full((s.scored,), number) for number, s in enumerate(samples)]).to(device)
    teacher = TeacherScores(
        torch.full((len(places),), torch.nan, device=device),
        torch.zeros(len(places), count, dtype=torch.long, device=device),
        torch.full((len(places), count), torch.nan, device=device),
    )
    told = [number for number, sample in enumerate(samples) if sample.hinted_prompt is not None]
    hinted = [samples[number].as_hinted() for number in told]
    for rows in pack([len(sample.ids) for sample in hinted], budget):
        found = model.answers_with_likeliest(teaching, [hinted[row] for row in rows], count)
        where = torch.cat([(places == told[row]).nonzero()[:, 0] for row in rows])
        teacher.logprobs[where] = found.logprobs
        teacher.likeliest[where] = found.likeliest
        teacher.likely[where] = found.likely
    return teacher
