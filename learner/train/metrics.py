"""A step's numbers, in TRL's words. A mean over nothing is None, never 0."""

import statistics
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from learner.train.gradient import MATCHING_RATIOS, Totals
from learner.train.samples import Sample

Metrics: TypeAlias = Mapping[str, float | None]

#: What bfloat16 explains between engine and trainer under the same weights; beyond it something is wrong:
#: the engine serves other weights, another template, another temperature.
USUAL_MEAN, USUAL_SHARE, USUAL_P99 = 0.03, 0.25, 0.3


def of_step(
    samples: Sequence[Sample], totals: Totals, *, kl: bool, grad_norm: float
) -> dict[str, float | None]:
    """The `metrics` of a steps row. `kl`: whether a reference was computed; without, kl/mean is None."""
    rewards = [s.reward for s in samples]
    return {
        "loss": totals.loss,
        "reward/mean": statistics.fmean(rewards),
        "reward/std": statistics.pstdev(rewards),
        "reward/length_correlation": _correlation(rewards, [float(s.scored) for s in samples]),
        "advantage/mean": statistics.fmean(s.advantage for s in samples),
        "advantage/std": statistics.pstdev(s.advantage for s in samples),
        "kl/mean": totals.kl / totals.tokens if kl else None,
        "entropy": totals.entropy / totals.tokens,
        "clip_ratio/region_mean": totals.clipped / totals.tokens,
        "teacher/share": totals.taught / totals.tokens,
        "teacher/kl": _mean(totals.gap, totals.taught),
        "mismatch_kl/mean": _mean(totals.mismatch, totals.recorded),
        "mismatch/share": _mean(totals.mismatched, totals.recorded),
        "recorded/share": totals.recorded / totals.tokens,
        **_first_ratio(totals.differences),
        "off_policy/max": float(max(s.staleness for s in samples)),
        "off_policy/mean": statistics.fmean(s.staleness for s in samples),
        "completions/mean_length": totals.tokens / len(samples),
        "completions/clipped_ratio": statistics.fmean(s.cut_short for s in samples),
        "completions/distinct": _distinct(samples),
        "optim/grad_norm": grad_norm,
        "samples": float(len(samples)),
        "tokens": float(sum(len(s.ids) for s in samples)),
    }


def _first_ratio(differences: Sequence[float]) -> dict[str, float | None]:
    """How trainer and engine differ, log(new/rollout) in nats, on answers of the version that trains on."""
    names = ("mean", "sd", "p99", "share")
    if not differences:
        return {f"first_ratio/{name}": None for name in names}
    logs = np.array(differences)
    outside = (logs < np.log(MATCHING_RATIOS[0])) | (logs > np.log(MATCHING_RATIOS[1]))
    figures = (logs.mean(), logs.std(), np.quantile(np.abs(logs), 0.99), outside.mean())
    return {f"first_ratio/{name}": float(figure) for name, figure in zip(names, figures, strict=True)}


def unusual_ratio(metrics: Metrics) -> str | None:
    """What is wrong with the first ratio, for the log; None where it is as usual or unknown."""
    mean, p99, share = (metrics.get(f"first_ratio/{name}") for name in ("mean", "p99", "share"))
    if mean is None or p99 is None or share is None:
        return None
    if abs(mean) <= USUAL_MEAN and share <= USUAL_SHARE and p99 <= USUAL_P99:
        return None
    return (
        f"trainer and engine differ by more than rounding on the same weights (mean {mean:+.3f} nats, "
        f"99% within {p99:.2f}, {share:.0%} of tokens outside {MATCHING_RATIOS}): "
        "does the engine serve the version and the temperature that were recorded?"
    )


def _correlation(rewards: Sequence[float], lengths: Sequence[float]) -> float | None:
    """Pearson's r; None where one of the two never varies. A judge that likes length makes answers grow."""
    varies = len(set(rewards)) > 1 and len(set(lengths)) > 1
    return statistics.correlation(rewards, lengths) if varies else None


def _distinct(samples: Sequence[Sample]) -> float | None:
    """Mean share of distinct trigrams of scored tokens; None where no answer has three in a row."""
    shares = []
    for sample in samples:
        ids, places = sample.tokens.tolist(), sample.before.tolist()
        trigrams = [tuple(ids[n : n + 3]) for n in range(len(ids) - 2) if places[n + 2] - places[n] == 2]
        if trigrams:
            shares.append(len(set(trigrams)) / len(trigrams))
    return statistics.fmean(shares) if shares else None


def _mean(total: float, count: float) -> float | None:
    return total / count if count else None
