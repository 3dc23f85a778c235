"""How far judges agree with people, and with each other. Pure.

Agreement is the share of turns that two sides give the same sign. Cohen's kappa takes off what they would
agree on by chance: (observed - expected) / (1 - expected), with the expected agreement of two raters who keep
their own shares of -1, 0 and 1 (Cohen 1960). 0 is chance, 1 is perfect; None where chance explains all.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from statistics import correlation
from typing import Any
from uuid import UUID

from dukou.store.sessions import GivenScore

SIGNS = (-1, 0, 1)
FEEDBACK = "feedback"


@dataclass(frozen=True)
class JudgeAgreement:
    """How far two sides agree. `confusion[(a, b)]` counts the turns to which the first side gives the sign a
    and the second the sign b."""

    first: str
    second: str
    turns: int
    agreement: float
    kappa: float | None
    confusion: Mapping[tuple[int, int], int]


@dataclass(frozen=True)
class LengthBias:
    """How a side's scores go with the answers' lengths: Pearson's r; None where one of the two never varies.

    A judge that likes long answers for their length teaches the policy to ramble while the reward rises.
    """

    side: str
    turns: int
    correlation: float | None


def length_bias(scores: Iterable[GivenScore]) -> list[LengthBias]:
    """How the scores of every side go with the lengths of the answers."""
    by_side: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for score in scores:
        if score.tokens is not None:
            by_side[score.side].append((score.value, float(score.tokens)))
    return [LengthBias(side, len(pairs), _pearson(pairs)) for side, pairs in sorted(by_side.items())]


def _pearson(pairs: list[tuple[float, float]]) -> float | None:
    values, lengths = zip(*pairs, strict=True)
    if len(set(values)) < 2 or len(set(lengths)) < 2:
        return None
    return correlation(values, lengths)


def calibrate(scores: Iterable[GivenScore]) -> list[JudgeAgreement]:
    """Every pair of sides that have a turn in common, feedback first."""
    by_side: defaultdict[str, dict[UUID, int]] = defaultdict(dict)
    for score in scores:
        by_side[score.side][score.turn_id] = sign(score.value)
    sides = sorted(by_side, key=lambda side: (side != FEEDBACK, side))
    return [
        agreement(first, second, pairs)
        for first, second in combinations(sides, 2)
        if (pairs := [(s, by_side[second][t]) for t, s in by_side[first].items() if t in by_side[second]])
    ]


def agreement(first: str, second: str, pairs: list[tuple[int, int]]) -> JudgeAgreement:
    """`pairs` are the signs that both sides give to one turn; at least one."""
    confusion = Counter(pairs)
    total = len(pairs)
    observed = sum(confusion[s, s] for s in SIGNS) / total
    of_first, of_second = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    expected = sum(of_first[s] * of_second[s] for s in SIGNS) / total**2
    kappa = None if expected == 1 else (observed - expected) / (1 - expected)
    return JudgeAgreement(first, second, total, observed, kappa, dict(confusion))


def sign(value: float) -> int:
    """-1, 0 or 1; what lies in the middle third of [-1, 1] counts as neither."""
    return 0 if abs(value) < 1 / 3 else 1 if value > 0 else -1


def text(found: list[JudgeAgreement], biases: Iterable[LengthBias] = ()) -> str:
    """For people: a line and a confusion table for each pair, then a line on length for each side."""
    blocks = list(map(_block, found)) or [
        "no turn has two scores: send feedback, or judge again with `learner score --rubric …`"
    ]
    lines = [f"  {bias.side}: {_shown(bias.correlation)} over {bias.turns} turns" for bias in biases]
    return "\n\n".join([*blocks, *(["\n".join(["score against answer length", *lines])] if lines else [])])


def _shown(value: float | None) -> str:
    return "unknown (one of the two never varies)" if value is None else f"{value:+.2f}"


def as_json(found: list[JudgeAgreement]) -> list[dict[str, Any]]:
    """For machines; the confusion as rows (first side -1, 0, 1) of columns (second side -1, 0, 1)."""
    return [
        {
            "first": one.first,
            "second": one.second,
            "turns": one.turns,
            "agreement": one.agreement,
            "kappa": one.kappa,
            "confusion": [[one.confusion.get((a, b), 0) for b in SIGNS] for a in SIGNS],
        }
        for one in found
    ]


def _block(one: JudgeAgreement) -> str:
    kappa = "unknown (one side says always the same)" if one.kappa is None else f"{one.kappa:.2f}"
    rows = [f"  {a:>+3d} " + "".join(f"{one.confusion.get((a, b), 0):>7}" for b in SIGNS) for a in SIGNS]
    return "\n".join(
        [
            f"{one.first} against {one.second}: {one.turns} turns, {one.agreement:.0%} agree, kappa {kappa}",
            f"  {one.first} (rows), {one.second} (columns: -1, 0, +1)",
            *rows,
        ]
    )
