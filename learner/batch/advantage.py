"""Advantages from rewards, as pure functions over one batch (float64, numpy: batching needs no torch).

Every function takes `rewards` of shape (N,) and returns advantages of shape (N,). A reward that is NaN is
missing: it takes no part in any mean, and its advantage is NaN.

The running baseline: what reward was to be expected, for traffic that answers each prompt once.

A sample's baseline is a mean shrunken in two steps (nothing known → all traffic → its task class) over past
batches, fading by half every `half_life` batches, and over the batch itself. The turn's own session takes no
part in either: later rewards of a session follow from its earlier answers, and a baseline that depends on
the answer biases the gradient. The deviation that divides is a running one with a floor, one number per
batch, never the deviation of one batch, which can be 0.

The state (dukou.store.batches.BaselineState) is sums that fade.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dukou.store.batches import BaselineState, SessionSum

Vector: TypeAlias = npt.NDArray[np.float64]

#: Rewards that differ by less carry no signal. A test on the spread, since float noise in the deviation of
#: six rewards of 0.6 would make an advantage of 0.79.
NO_SPREAD = 1e-6
#: Added to a deviation before it divides, as in TRL and verl.
EPSILON = 1e-4


def raw(rewards: Vector) -> Vector:
    """The reward itself (OpenClaw-RL's binary reward)."""
    return rewards.astype(np.float64)


def over_batch(rewards: Vector) -> Vector:
    """(r − mean)/(std + ε) over the whole batch."""
    return over_groups(rewards, [0] * len(rewards))


def over_groups(rewards: Vector, groups: Sequence[object], *, divide: bool = True) -> Vector:
    """GRPO: r minus its group's mean, divided by the group's unbiased deviation + ε unless `divide` is off.

    `groups` names each sample's group, shape (N,). A group without spread, or of one, gives exactly 0.
    """

    def centred(values: Vector) -> Vector:
        away: Vector = values - values.mean()
        if divide:
            away /= values.std(ddof=1) + EPSILON
        return away

    return _per_group(rewards, groups, centred)


def leave_one_out(rewards: Vector, groups: Sequence[object]) -> Vector:
    """RLOO: r minus the mean of the *other* rewards of its group. No spread, or a group of one: exactly 0."""
    return _per_group(
        rewards, groups, lambda values: (values - values.mean()) * len(values) / (len(values) - 1)
    )


def has_spread(rewards: Vector, groups: Sequence[object]) -> npt.NDArray[np.bool_]:
    """Which samples are in a group that says something, shape (N,): two or more known rewards that differ."""
    alive = np.zeros(len(rewards), dtype=bool)
    for rows in _rows(rewards, groups):
        alive[rows] = _differ(rewards[rows])
    return alive


def _per_group(rewards: Vector, groups: Sequence[object], centre: Callable[[Vector], Vector]) -> Vector:
    advantages = np.full(len(rewards), np.nan)
    for rows in _rows(rewards, groups):
        values = rewards[rows].astype(np.float64)
        advantages[rows] = centre(values) if _differ(values) else 0.0
    return advantages


def _rows(rewards: Vector, groups: Sequence[object]) -> list[list[int]]:
    """The positions of each group's known rewards."""
    if len(groups) != len(rewards):
        raise ValueError(f"{len(rewards)} rewards, but {len(groups)} group names")
    members: dict[object, list[int]] = {}
    for row, group in enumerate(groups):
        if not np.isnan(rewards[row]):
            members.setdefault(group, []).append(row)
    return list(members.values())


def _differ(values: Vector) -> bool:
    return len(values) > 1 and bool(values.max() - values.min() > NO_SPREAD)


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
