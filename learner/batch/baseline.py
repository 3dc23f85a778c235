"""The running baseline: what reward was to be expected, for traffic that answers each prompt once.

A sample's baseline is a mean shrunken in two steps (nothing known → all traffic → its task class) over past
batches, fading by half every `half_life` batches, and over the batch itself. The turn's own session takes no
part in either: later rewards of a session follow from its earlier answers, and a baseline that depends on
the answer biases the gradient. The deviation that divides is a running one with a floor, one number per
batch, never the deviation of one batch, which can be 0.

The state (dukou.store.batches.BaselineState) is sums that fade.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dukou.store.batches import BaselineState, SessionSum

#: Pseudo-observations: of reward 0 behind the global mean, and of the global mean behind a class's.
GLOBAL_PRIOR = 2.0
CLASS_PRIOR = 4.0
#: Pseudo-observations of a residual of 1 (the largest plausible) behind the running deviation.
DEVIATION_PRIOR = 2.0
#: A session whose remaining weight is below this is no longer told from others.
LEAST_WEIGHT = 1e-3
#: The name under which the rest of such sessions is added up.
NO_SESSION = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """One sample as the baseline sees it: its session, its task class (from the prompt only), its reward."""

    session: str
    task: str
    reward: float


@dataclass(frozen=True, slots=True)
class CentredRewards:
    baselines: list[float]
    advantages: list[float]
    deviation: float
    state: BaselineState  # after the batch


@dataclass(slots=True)
class _Sum:
    weight: float = 0.0
    total: float = 0.0

    def add(self, weight: float, total: float) -> None:
        self.weight += weight
        self.total += total


def session_key(tenant: str, session_id: str) -> str:
    """A short name for a session, so that the stored state holds no client's identifiers."""
    return hashlib.sha256(f"{tenant}\0{session_id}".encode()).hexdigest()[:16]


def centre(
    batch: Sequence[Observation], state: BaselineState, *, half_life: float, deviation_floor: float
) -> CentredRewards:
    """Baselines and advantages of a batch, shape (N,) each, and the state for the next one.

    `state` is what the batch before returned; empty at the very start.
    """
    sums = _faded(state, 0.5 ** (1 / half_life))
    for sample in batch:
        sums.setdefault((sample.session, sample.task), _Sum()).add(1.0, sample.reward)
    baselines = [_expected(sums, sample.session, sample.task) for sample in batch]
    residuals = [sample.reward - baseline for sample, baseline in zip(batch, baselines, strict=True)]
    squares = _Sum(*state.residuals)
    fade = 0.5 ** (1 / half_life)
    squares = _Sum(squares.weight * fade + len(batch), squares.total * fade + sum(r * r for r in residuals))
    variance = (DEVIATION_PRIOR + squares.total) / (DEVIATION_PRIOR + squares.weight)
    deviation = max(variance**0.5, deviation_floor)
    return CentredRewards(
        baselines=baselines,
        advantages=[residual / deviation for residual in residuals],
        deviation=deviation,
        state=BaselineState(
            tuple(SessionSum(*owner, each.weight, each.total) for owner, each in sorted(sums.items())),
            (squares.weight, squares.total),
        ),
    )


def _faded(state: BaselineState, factor: float) -> dict[tuple[str, str], _Sum]:
    """The stored sums, one batch older; the rest of nearly forgotten sessions under NO_SESSION."""
    sums: dict[tuple[str, str], _Sum] = {}
    for session, task, weight, total in state.sessions:
        left = weight * factor
        owner = session if left >= LEAST_WEIGHT else NO_SESSION
        sums.setdefault((owner, task), _Sum()).add(left, total * factor)
    return {key: s for key, s in sums.items() if s.weight >= LEAST_WEIGHT}


def _expected(sums: Mapping[tuple[str, str], _Sum], session: str, task: str) -> float:
    everywhere, here = _Sum(), _Sum()
    for (owner, kind), s in sums.items():
        if owner == session:
            continue
        everywhere.add(s.weight, s.total)
        if kind == task:
            here.add(s.weight, s.total)
    overall = everywhere.total / (GLOBAL_PRIOR + everywhere.weight)
    return (CLASS_PRIOR * overall + here.total) / (CLASS_PRIOR + here.weight)
