"""The loss per token, as pure torch functions, and how tokens are weighed in the whole batch.

All arguments are float tensors of one shape, usually (T,): the scored positions of one sequence, or of a
micro-batch laid end to end. `new`, `old`, `rollout`, `reference` are log-probabilities of the sampled tokens
at the temperature they were sampled at: under the weights being trained, under the weights before the step,
as the engine recorded them (NaN where it did not), and under the base model.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["token_mean", "sequence_mean", "fixed_length"]

#: Log-differences are cut here before exp: an outlier token gives a large number, never an infinite one.
LARGEST_LOG_RATIO = 20.0
#: Less probability than this is rounding in float32.
SMALLEST_REST = 1e-6


def ratio(new: Tensor, old: Tensor) -> Tensor:
    """new/old per token; finite for any finite input."""
    return torch.exp((new - old).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO))


def ppo_clip(
    new: Tensor, old: Tensor, advantage: Tensor, *, low: float, high: float, dual: float | None = None
) -> Tensor:
    """PPO's clipped loss per token: −min(r·A, clip(r, 1 − low, 1 + high)·A).

    With `dual` (> 1), a token of negative advantage costs at most dual·|A|: min() alone leaves it unbounded.
    """
    r = ratio(new, old)
    objective = torch.minimum(r * advantage, r.clamp(1 - low, 1 + high) * advantage)
    if dual is not None:
        objective = torch.where(advantage < 0, torch.maximum(objective, dual * advantage), objective)
    return -objective


def clipped(new: Tensor, old: Tensor, advantage: Tensor, *, low: float, high: float) -> Tensor:
    """Which tokens' ratio is outside the region on the side where the clip takes the gradient away; bool."""
    r = ratio(new, old)
    return ((r < 1 - low) & (advantage < 0)) | ((r > 1 + high) & (advantage > 0))


def importance_weight(old: Tensor, rollout: Tensor, cap: float) -> Tensor:
    """Truncated importance weight exp(old − rollout) ≤ cap, without gradient.

    1 where `rollout` is NaN: what was recomputed with the trainer's own numerics needs none.
    """
    weight = ratio(old, rollout).clamp(max=cap)
    return torch.where(rollout.isnan(), torch.ones_like(weight), weight).detach()


def k3(new: Tensor, reference: Tensor) -> Tensor:
    """Schulman's k3 estimate of KL(new‖reference) per token: exp(d) − d − 1, d = reference − new; ≥ 0."""
    difference = (reference - new).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    return torch.exp(difference) - difference - 1


def with_teacher(advantage: Tensor, old: Tensor, teacher: Tensor, *, w_rl: float, w_opd: float) -> Tensor:
    """w_rl·A + w_opd·(teacher − old): rewards and distillation, without gradient.

    `teacher` is the token's log-probability under the prompt with the hint in it, NaN where no teacher
    scored it: there the second term is absent. A stand-in such as `rollout` would leak the engine's numerics.
    """
    gap = torch.where(teacher.isnan(), torch.zeros_like(old), teacher - old)
    return (w_rl * advantage + w_opd * gap).detach()


def top_k_reverse_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """Σₖ sₖ·log(sₖ/tₖ) per position, (T,), over K tokens and, as one more outcome, all others.

    Both (T, K) log-probabilities of the same K tokens, which the teacher finds likeliest; `teacher` without
    gradient, NaN where there is none: 0 there. With the others as one outcome both sides are distributions,
    so this is a KL divergence: 0 where they agree, else above, and at most that of the whole vocabulary.
    Without it, the least would be to move all mass away from these K.
    """
    known = ~teacher.isnan().any(-1)
    student, teacher = student[known], teacher[known].detach()
    inside = (student.exp() * (student - teacher)).sum(-1)
    rest, rest_of_teacher = _rest(student), _rest(teacher)
    outside = rest * (rest.log() - rest_of_teacher.log())
    return torch.zeros(known.shape, dtype=student.dtype, device=student.device).masked_scatter(
        known, inside + outside
    )


def _rest(logprobs: Tensor) -> Tensor:
    """The probability of all other tokens, (T,); never quite 0, where rounding would make it so."""
    return (1 - logprobs.exp().sum(-1)).clamp(min=SMALLEST_REST)


def token_weights(lengths: Sequence[int], aggregation: Aggregation, fixed_length: int) -> list[float]:
    """What one token of each sequence counts in the batch's loss: loss = Σᵢ wᵢ Σₜ lossᵢₜ.

    `lengths` are the scored tokens of every sequence of the *whole* batch, so the weights do not depend on
    how it is cut into micro-batches. `token_mean`: every token alike. `sequence_mean`: every sequence alike.
    `fixed_length`: a sum divided by sequences × `fixed_length`, so long answers are not diluted.
    Raises ValueError where a sequence has no scored token.
    """
    if not lengths or min(lengths) < 1:
        raise ValueError("every sequence of a batch needs at least one scored token")
    if aggregation == "token_mean":
        return [1 / sum(lengths)] * len(lengths)
    if aggregation == "sequence_mean":
        return [1 / (length * len(lengths)) for length in lengths]
    return [1 / (fixed_length * len(lengths))] * len(lengths)
