"""The gradient of one batch: micro-batch after micro-batch, each token weighed in the whole batch.

AdamW over the masters, with the settings of each step.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from dukou.settings.learning import LossSettings, TrainerSettings
from learner.train import loss, model
from learner.train.samples import Row, Sample, passes, plan
from learner.train.teacher import score_hinted, teaching_model
from learner.train.weights import Weights

#: A token of negative advantage costs at most this many times its advantage.
DUAL_CLIP = 3.0
#: On a CPU a matrix product of so many rows is as fast as a larger one, and takes less memory.
CPU_TOKENS = 512
#: Ratios trainer/engine outside this region count as mismatched.
MATCHING_RATIOS = (0.9, 1.1)


@dataclass(slots=True)
class Totals:
    """Sums over the batch's scored tokens, except `loss`, which is the batch's loss."""

    loss: float = 0.0
    tokens: float = 0.0
    kl: float = 0.0
    entropy: float = 0.0
    clipped: float = 0.0
    recorded: float = 0.0  # tokens with a log-probability from the engine
    mismatch: float = 0.0  # k3 of engine‖trainer over the recorded ones
    mismatched: float = 0.0  # recorded ones whose ratio is outside MATCHED
    taught: float = 0.0  # tokens that a teacher scored
    gap: float = 0.0  # old − teacher over those
    differences: list[float] = field(default_factory=list)  # old − rollout of what the live version answered

    def add(self, other: "Totals") -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss)


def accumulate(
    weights: Weights, samples: Sequence[Sample], settings: LossSettings, trainer: TrainerSettings
) -> Totals:
    """Leaves the gradient of the whole batch in the masters and returns its sums."""
    shares = loss.token_weights([s.scored for s in samples], settings.aggregation, trainer.max_tokens)
    totals = Totals()
    weights.clear()
    budget = token_budget(weights, trainer)
    for rows in passes(plan(samples, budget, model.sharing(weights.model)), budget):
        members = [number for row in rows for number in row.members]
        chosen, theirs = [samples[number] for number in members], [shares[number] for number in members]
        totals.add(_one(weights, rows, chosen, theirs, settings, budget))
    return totals


def token_budget(weights: Weights, trainer: TrainerSettings) -> int:
    """Tokens of one forward pass, padding included."""
    on_cpu = model.head(weights.model).device.type == "cpu"
    return min(trainer.micro_batch_tokens, CPU_TOKENS) if on_cpu else trainer.micro_batch_tokens


def _one(
    weights: Weights,
    rows: Sequence[Row],
    samples: Sequence[Sample],
    shares: Sequence[float],
    settings: LossSettings,
    budget: int,
) -> Totals:
    """One forward and backward pass; `samples` and their `shares` in the order of the rows' answers."""
    reference = _reference(weights, rows) if settings.kl > 0 else None
    with teaching_model(weights, settings) as teaching:
        teacher = score_hinted(teaching, samples, settings.opd_top_k if settings.mode != "rl" else 0, budget)
    scored = model.scores(weights.model, rows, weights.head_gradient(), teacher.likeliest)
    new, student = scored.logprobs[:, 0], scored.logprobs[:, 1:]
    device = new.device
    # One optimizer step a batch: the weights before the step are the ones this pass ran with.
    old = new.detach()
    rollout = torch.cat([torch.from_numpy(s.recorded) for s in samples]).to(device)
    advantage = _advantage(samples, old, teacher.logprobs, settings)
    share = _per_token(shares, samples, device)
    clip = {"low": settings.clip_low, "high": settings.clip_high}
    per_token = loss.ppo_clip(new, old, advantage, **clip, dual=DUAL_CLIP)
    per_token = per_token * loss.importance_weight(old, rollout, settings.tis_cap)
    kl = loss.k3(new, reference) if reference is not None else torch.zeros_like(new)
    distilled = settings.w_opd * loss.top_k_reverse_kl(student, teacher.likely)
    value = ((per_token + settings.kl * kl + distilled) * share).sum()
    value.backward()  # type: ignore[no-untyped-call]
    totals = _totals(float(value.detach()), old, rollout, kl.detach(), scored.entropy)
    totals.clipped = float(loss.clipped(new.detach(), old, advantage, **clip).sum())
    totals.taught = float((~teacher.logprobs.isnan()).sum())
    totals.gap = float((old - teacher.logprobs).nansum())
    fresh = _per_token([float(s.staleness == 0) for s in samples], samples, device).bool() & ~rollout.isnan()
    totals.differences = (old - rollout)[fresh].tolist()
    return totals


def _advantage(samples: Sequence[Sample], old: Tensor, teacher: Tensor, settings: LossSettings) -> Tensor:
    rewarded = _per_token([s.advantage for s in samples], samples, old.device)
    if settings.mode == "rl":
        return rewarded
    w_rl = 0.0 if settings.mode == "opd" else settings.w_rl
    # Where whole distributions are compared, the answer's own token is not compared once more.
    w_opd = 0.0 if settings.opd_top_k else settings.w_opd
    return loss.with_teacher(rewarded, old, teacher, w_rl=w_rl, w_opd=w_opd)


@torch.no_grad()
def _reference(weights: Weights, rows: Sequence[Row]) -> Tensor:
    with weights.reference() as base:
        return model.scores(base, rows).logprobs


def _per_token(values: Sequence[float], samples: Sequence[Sample], device: torch.device) -> Tensor:
    counts = torch.tensor([s.scored for s in samples])
    return torch.tensor(values, dtype=torch.float32).repeat_interleave(counts).to(device)


def _totals(value: float, old: Tensor, rollout: Tensor, kl: Tensor, entropy: Tensor) -> Totals:
    recorded = ~rollout.isnan()
    ratio = loss.ratio(old[recorded], rollout[recorded])
    return Totals(
        loss=value,
        tokens=float(len(old)),
        kl=float(kl.sum()),
        entropy=float(entropy.sum()),
        recorded=float(recorded.sum()),
        mismatch=float(loss.k3(rollout[recorded], old[recorded]).sum()),
        mismatched=float(((ratio < MATCHING_RATIOS[0]) | (ratio > MATCHING_RATIOS[1])).sum()),
    )


def adamw(masters: Iterable[nn.Parameter]) -> Optimizer:
    """The optimizer of fresh masters; its rates come with every step."""
    return AdamW(masters, fused=True)


def step(optimizer: Optimizer, settings: TrainerSettings) -> float:
    """Applies the masters' gradients once, at these settings; the learning rate that it did so with."""
    rate = learning_rate(settings, _taken(optimizer))
    for group in optimizer.param_groups:
        group.update(lr=rate, betas=settings.betas, eps=settings.epsilon, weight_decay=settings.weight_decay)
    optimizer.step()
    return rate


def learning_rate(settings: TrainerSettings, taken: int) -> float:
    """The rate of the step after `taken` ones: it rises in equal parts over `warmup_steps`, then is constant.

    Adam divides a gradient by its own size, of which it knows little at first: its first steps are as long as
    later ones and go where one batch's noise points.
    """
    return settings.learning_rate * min(1.0, (taken + 1) / max(settings.warmup_steps, 1))


def _taken(optimizer: Optimizer) -> int:
    """Steps behind the moments that the optimizer holds. They are in the checkpoint, so a resumed learner
    goes on with the same rates, and one that was rolled back to the base model warms up again."""
    state = next(iter(optimizer.state.values()), None)
    return 0 if state is None else int(state["step"])
