"""From answers to figures. Pure."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.publishing.users import Answer


@dataclass(frozen=True, slots=True)
class Outcomes:
    """How answers ended. `truncated`: without a finish reason or without the stream's end."""

    answers: int
    failed: int
    aborted: int
    truncated: int


def outcomes(answers: Sequence[Answer]) -> Outcomes:
    failed = [answer for answer in answers if answer.error is not None]
    rest = [answer for answer in answers if answer.error is None]
    aborted = [answer for answer in rest if answer.finish == "abort"]
    whole = [answer for answer in rest if answer.finish in ("length", "stop") and answer.done]
    cut = len(rest) - len(aborted) - len(whole)
    return Outcomes(len(answers), len(failed), len(aborted), cut)


def percentile(values: Iterable[float], share: float) -> float:
    """The nearest-rank percentile. Raises ValueError without values."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def ratio(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or not theirs else round(ours / theirs, 3)


def usual_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the rounds' ratios: what else the machine does in a round, both have."""
    return round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 3)


def gaps_of(answers: Sequence[Answer]) -> list[float]:
    """Seconds between two tokens, of all answers that gave any."""
    return [gap for answer in answers if answer.chunks for gap in answer.gaps]


def stalls_of(answers: Sequence[Answer]) -> list[float]:
    """Seconds of the longest silence of each answer that gave a token."""
    return [answer.stall for answer in answers if answer.chunks]


def wrongly_labelled(
    recorded: Sequence[float | None], claimed: Sequence[float | None], other: Sequence[float | None]
) -> bool:
    """Whether another version explains a turn's log-probabilities better than the one it is labelled with."""
    return _distance(recorded, claimed) > _distance(recorded, other)


def _distance(ours: Sequence[float | None], theirs: Sequence[float | None]) -> float:
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]
    return sum(abs(a - b) for a, b in pairs) / len(pairs) if pairs else math.inf
