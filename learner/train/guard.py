"""Whether a step may be applied: what a batch shows of its policy before the gradient is used. Pure.

A reward can be gamed. What tells is beside it: distance from the base model, entropy, length, repetition, a
judge that says the same of everything. Each is measured on the batch, under the weights before its step.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dukou.settings.learning import GuardSettings
from learner.train.metrics import Metrics

#: The first steps' mean is what later ones are held against; fewer say too little.
FIRST_STEPS = 4
#: A spike is told from so many earlier norms at least.
LEAST_NORMS = 5


@dataclass(frozen=True, slots=True)
class Refusal:
    """The batch is skipped for `reason` (dukou/store/states.py). `drift` freezes learning as well."""

    reason: Literal["not_finite", "grad_spike", "drift"]
    detail: str


def refuse(
    measured: Metrics, first: Sequence[Metrics], recent: Sequence[Metrics], guard: GuardSettings
) -> Refusal | None:
    """Why this step must not be applied. `first` and `recent`: earlier steps' metrics, oldest first."""
    drifted = _drift(measured, first, guard) or _same_rewards(measured, recent, guard)
    if drifted:
        return Refusal("drift", drifted)
    return _spike(measured, recent, guard)


def _drift(measured: Metrics, first: Sequence[Metrics], guard: GuardSettings) -> str | None:
    kl = measured["kl/mean"]
    if guard.max_kl and kl is not None and kl > guard.max_kl:
        return f"kl/mean is {kl:.2f} nats a token, more than guard.max_kl = {guard.max_kl:g}"
    checks = (
        ("entropy", "min_entropy", guard.min_entropy, -1),
        ("completions/mean_length", "max_length", guard.max_length, 1),
        ("completions/distinct", "min_distinct", guard.min_distinct, -1),
    )
    for name, setting, limit, sign in checks:
        now, then = measured[name], _mean(name, first[:FIRST_STEPS])
        if limit and now is not None and then and sign * (now / then - limit) > 0:
            side = "more" if sign > 0 else "less"
            return (
                f"{name} is {now:.3g}, {now / then:.2f} times the first steps' {then:.3g}: {side} than "
                f"guard.{setting} = {limit:g}"
            )
    return None


def _mean(name: str, first: Sequence[Metrics]) -> float | None:
    known = [value for metrics in first if (value := metrics.get(name)) is not None]
    return statistics.fmean(known) if len(known) == FIRST_STEPS else None


def _same_rewards(measured: Metrics, recent: Sequence[Metrics], guard: GuardSettings) -> str | None:
    run = [*recent, measured][-guard.same_rewards :] if guard.same_rewards else []
    if len(run) < guard.same_rewards or not run or any(metrics.get("reward/std") != 0 for metrics in run):
        return None
    return f"all rewards were the same for {len(run)} batches (guard.same_rewards): is the judge at fault?"


def _spike(measured: Metrics, recent: Sequence[Metrics], guard: GuardSettings) -> Refusal | None:
    norms = [norm for metrics in recent if (norm := metrics.get("optim/grad_norm")) is not None]
    norm = measured["optim/grad_norm"]
    if not guard.max_spike or norm is None or len(norms) < LEAST_NORMS:
        return None
    usual = statistics.median(norms)
    if norm <= guard.max_spike * usual:
        return None
    return Refusal(
        "grad_spike",
        f"the gradient's norm is {norm:.3g}, the recent median {usual:.3g}: more than "
        f"guard.max_spike = {guard.max_spike:g} times",
    )
