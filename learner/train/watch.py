"""Whether a version is worse than the one before, and how sure that is. Pure.

Means are compared as Welch does, with the normal quantile: the fall that is certain to the asked degree is
    (before − now) − z · sqrt(var_before / n_before + var_now / n_now).
It is looked at again and again, so the confidence should be well above 0.95.
"""

import math
from statistics import NormalDist

from dukou.settings.learning import WatchSettings
from dukou.store.watch import SampleMean, VersionFigures


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
