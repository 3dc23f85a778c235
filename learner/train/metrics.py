"""A step's numbers, in TRL's words. A mean over nothing is None, never 0."""

import statistics
from collections.abc import Sequence

from learner.train.objective import Totals
from learner.train.sample import Sample


def of_step(
    samples: Sequence[Sample], totals: Totals, *, kl: bool, grad_norm: float, seconds: float
) -> dict[str, float | None]:
    """The `metrics` of a steps row. `kl`: whether a reference was computed; without, kl/mean is None.
    `seconds` are those of the update alone, without loading and writing."""
    tokens = sum(len(s.ids) for s in samples)
    rewards = [s.reward for s in samples]
    return {
        "loss": totals.loss,
        "reward/mean": statistics.fmean(rewards),
        "reward/std": statistics.pstdev(rewards),
        "advantage/mean": statistics.fmean(s.advantage for s in samples),
        "advantage/std": statistics.pstdev(s.advantage for s in samples),
        "kl/mean": totals.kl / totals.tokens if kl else None,
        "entropy": totals.entropy / totals.tokens,
        "clip_ratio/region_mean": totals.clipped / totals.tokens,
        "mismatch_kl/mean": _mean(totals.mismatch, totals.recorded),
        "mismatch/share": _mean(totals.mismatched, totals.recorded),
        "recorded/share": totals.recorded / totals.tokens,
        "off_policy/max": float(max(s.staleness for s in samples)),
        "off_policy/mean": statistics.fmean(s.staleness for s in samples),
        "completions/mean_length": totals.tokens / len(samples),
        "completions/clipped_ratio": statistics.fmean(s.cut_short for s in samples),
        "optim/grad_norm": grad_norm,
        "samples": float(len(samples)),
        "tokens": float(tokens),
        "perf/tokens_per_second": _mean(tokens, seconds),
    }


def _mean(total: float, count: float) -> float | None:
    return total / count if count else None
