"""Advantages from rewards, as pure functions over one batch (float64, numpy: batching needs no torch).

Every function takes `rewards` of shape (N,) and returns advantages of shape (N,). A reward that is NaN is
missing: it takes no part in any mean, and its advantage is NaN.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

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
