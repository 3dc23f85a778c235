"""Whether a step may be applied: what a batch shows of its policy before the gradient is used. Pure.

A reward can be gamed. What tells is beside it: distance from the base model, entropy, length, repetition, a
judge that says the same of everything. Each is measured on the batch, under the weights before its step.

Whether a version may become live by itself, from what its step measured. Pure.

What is unknown (NULL) refuses nothing: `publish.held_out` turns may not be there yet.

Whether a version is worse than the one before, and how sure that is. Pure.

Means are compared as Welch does, with the normal quantile: the fall that is certain to the asked degree is
    (before − now) − z · sqrt(var_before / n_before + var_now / n_now).
It is looked at again and again, so the confidence should be well above 0.95.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from dukou.settings.learning import GuardSettings, PublishSettings, WatchSettings
from dukou.store.watch import SampleMean, VersionFigures
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


def refusal(measured: Mapping[str, float | None], limits: PublishSettings) -> str | None:
    """Why a version must not become live, with the numbers; None where it may. A limit of 0 is none."""
    turns = f"on {measured.get('held/turns') or 0:.0f} held-out turns"
    for name, limit, setting, words in (
        ("kl/mean", limits.max_kl, "max_kl", "its KL to the base model is {:.3g} nats a token"),
        (
            "held/kl_base",
            limits.max_kl,
            "max_kl",
            f"its KL to the base model is {{:.3g}} nats a token {turns}",
        ),
        (
            "held/kl_last",
            limits.max_kl_last,
            "max_kl_last",
            f"its KL to the version before is {{:.3g}} nats a token {turns}",
        ),
    ):
        value = measured.get(name)
        if limit and value is not None and value > limit:
            return f"{words.format(value)}, publish.{setting} allows {limit:g}"
    good, bad = measured.get("held/good"), measured.get("held/bad")
    if not limits.max_fall or good is None or good >= -limits.max_fall:
        return None
    others = "" if bad is None else f", bad ones by {-bad:.3g}"
    return (
        f"{turns} good answers became less likely by {-good:.3g} nats a token{others}: "
        f"publish.max_fall allows {limits.max_fall:g}"
    )


def worse(now: VersionFigures, before: VersionFigures, settings: WatchSettings) -> str | None:
    """Why `now` is worse than `before`; None where it is not, or where too little is known."""
    if settings.turns == 0 or min(now.score.count, before.score.count) < settings.turns:
        return None
    z = NormalDist().inv_cdf(settings.confidence)
    fall = certain_fall(now.score, before.score, z)
    if fall is not None and fall > settings.drop:
        return (
            f"the mean score fell from {before.score.mean:.2f} to {now.score.mean:.2f} "
            f"over {now.score.count} turns ({settings.confidence:.0%} sure by more than {settings.drop:g})"
        )
    return _other_length(now, before, settings, z) or _other_habits(now, before, settings, z)


def _other_length(
    now: VersionFigures, before: VersionFigures, settings: WatchSettings, z: float
) -> str | None:
    for word, longer, shorter in (
        ("longer", now.length, before.length),
        ("shorter", before.length, now.length),
    ):
        if _surely_above(longer, shorter, settings.length, z):
            return (
                f"answers became {word}: {before.length.mean:.0f} to {now.length.mean:.0f} tokens "
                f"({settings.confidence:.0%} sure by more than {settings.length:g} times)"
            )
    return None


def _other_habits(
    now: VersionFigures, before: VersionFigures, settings: WatchSettings, z: float
) -> str | None:
    for words, rate, earlier, limit in (
        ("answers that refuse", now.refusals, before.refusals, settings.refusals),
        ("tool calls that cannot be read", now.unreadable, before.unreadable, settings.tools),
    ):
        if min(rate.count, earlier.count) >= settings.turns and _surely_rose(rate, earlier, limit, z):
            return (
                f"{words} rose from {earlier.mean:.0%} to {rate.mean:.0%} of {rate.count} turns "
                f"({settings.confidence:.0%} sure by more than {limit:.0%})"
            )
    return None


def certain_fall(now: SampleMean, before: SampleMean, z: float) -> float | None:
    """The part of a fall of the mean that `z` standard errors leave; None where there is no variance yet."""
    if now.mean is None or before.mean is None or now.variance is None or before.variance is None:
        return None
    error = math.sqrt(now.variance / now.count + before.variance / before.count)
    return before.mean - now.mean - z * error


def _surely_rose(now: SampleMean, before: SampleMean, limit: float, z: float) -> bool:
    """Whether a mean surely rose by more than the limit: what would be a fall the other way round."""
    rise = certain_fall(before, now, z)
    return rise is not None and rise > limit


def _surely_above(larger: SampleMean, smaller: SampleMean, factor: float, z: float) -> bool:
    """Whether one mean surely is above the other by a factor."""
    if smaller.mean is None or smaller.variance is None:
        return False
    scaled = SampleMean(smaller.count, factor * smaller.mean, factor**2 * smaller.variance)
    fall = certain_fall(scaled, larger, z)
    return fall is not None and fall > 0
