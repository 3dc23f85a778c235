"""Chooses among hints: those that enough votes give, and the one that moves the teacher most. Pure.

The effect of a hint is how far it moves the teacher's log-probabilities of the stored answer, up or down: a
hint teaches by what it takes from wrong tokens as well as by what it adds to right ones, and teacher − old is
the advantage that the step will see. The largest rise alone would choose the hint that makes the answer
likelier as it stands, the largest fall the one that fits it least. All hints are of one answer, so the mean
over its tokens ranks them as the sum does.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dukou.store.scores import OK, Vote

SHORTEST_HINT = 11  # characters; a shorter one says nothing

Logprobs = npt.NDArray[np.floating[Any]]
Name = TypeVar("Name", bound=Hashable)


def hints_of(votes: Sequence[Vote], quorum: int) -> tuple[str, ...]:
    """What the votes say the answer should have been told: each text once, in the order of the votes.

    Empty where fewer than `quorum` votes have a hint: one vote's idea is not enough.
    """
    said = [vote.hint.strip() for vote in votes if vote.status == OK and vote.hint]
    usable = [hint for hint in said if len(hint) >= SHORTEST_HINT]
    return tuple(dict.fromkeys(usable)) if len(usable) >= quorum else ()


def effect(told: Logprobs, untold: Logprobs) -> float | None:
    """Mean nats by which a hint moves the answer's tokens, up or down; None where no position has both.

    `told` and `untold` (T,): log-probabilities of the answer's tokens with and without the hint. Raises
    ValueError where their lengths differ.
    """
    if told.shape != untold.shape:
        raise ValueError(f"{told.shape[0]} and {untold.shape[0]} tokens are not the same answer")
    moved = np.abs(told - untold)
    known = moved[np.isfinite(moved)]
    return float(known.mean()) if known.size else None


def by_effect(told: Mapping[Name, Logprobs], untold: Logprobs) -> list[Name]:
    """The hints in ascending order of effect; equal ones as they came, one without an effect first."""
    effects = {name: effect(logprobs, untold) for name, logprobs in told.items()}
    return sorted(effects, key=lambda name: -1.0 if (of := effects[name]) is None else of)
