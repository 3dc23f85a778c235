"""Which hint says most: the one that moves the teacher's log-probabilities of the stored answer most. Pure.

Up or down: a hint teaches by what it takes from wrong tokens as well as by what it adds to right ones, and
teacher − old is the advantage that the step will see. The largest rise alone would choose the hint that makes
the answer likelier as it stands, the largest fall the one that fits it least. All hints are of one answer, so
the mean over its tokens ranks them as the sum does.
"""

from collections.abc import Hashable, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Logprobs = npt.NDArray[np.floating[Any]]
Name = TypeVar("Name", bound=Hashable)


def effect(told: Logprobs, untold: Logprobs) -> float | None:
    """Mean nats by which a hint moves the answer's tokens, up or down; None where no position has both."""
    if told.shape != untold.shape:
        raise ValueError(f"{told.shape[0]} and {untold.shape[0]} tokens are not the same answer")
    moved = np.abs(told - untold)
    known = moved[np.isfinite(moved)]
    return float(known.mean()) if known.size else None


def by_effect(told: Mapping[Name, Logprobs], untold: Logprobs) -> list[Name]:
    """The hints, the most informative last; equal ones as they came, one without an effect before all."""
    effects = {name: effect(logprobs, untold) for name, logprobs in told.items()}
    return sorted(effects, key=lambda name: -1.0 if (of := effects[name]) is None else of)
