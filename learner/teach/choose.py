"""Which hint says most: the one that moves the teacher's log-probabilities of the stored answer. Pure."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Logprobs = npt.NDArray[np.floating[Any]]


def effect(told: Logprobs, untold: Logprobs) -> float | None:
    """Mean nats by which a hint moves the answer's tokens, up or down; None where no position has both."""
    if told.shape != untold.shape:
        raise ValueError(f"{told.shape[0]} and {untold.shape[0]} tokens are not the same answer")
    moved = np.abs(told - untold)
    known = moved[np.isfinite(moved)]
    return float(known.mean()) if known.size else None


def by_effect(told: Mapping[str, Logprobs], untold: Logprobs) -> list[str]:
    """The hints, the most informative last; one without an effect, by its length, before all others."""
    effects = {hint: effect(logprobs, untold) for hint, logprobs in told.items()}
    return sorted(effects, key=lambda hint: (-1.0 if effects[hint] is None else effects[hint], len(hint)))
