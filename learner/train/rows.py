"""Rows of a forward pass: what several samples begin with is in a row once. Pure, and of the batch alone.

The turns of a session are a *chain*: the prompt of each begins with the ids of the one before, its answer
included, and attention is causal, so a pass over the longest is the pass of all. Samples that part ways
(siblings, sessions under one system prompt) *branch*: a row holds the first whole, of each other one only how
it goes on, and a token sees what comes before it in its own sample (`learner/train/attention.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from learner.train.sample import Sample, pack

Ids: TypeAlias = npt.NDArray[np.int64]
Sharing = Literal["nothing", "chains", "branches"]

#: A branch for fewer tokens costs more than their second pass.
LEAST_SHARED = 32
#: A row that branches is at most so many times its longest sample: what sharing may cost in memory.
LARGEST_ROW = 2


@dataclass(frozen=True, slots=True)
class RowPiece:
    """Tokens of a row from `start` up to the next piece's: they go on after the first `after` tokens of the
    sample that ends where the piece begins."""

    start: int
    after: int


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence of L tokens that scores T tokens of its samples' answers, laid end to end.

    `members`: the samples, by their place in the batch, in the order of their answers; `ids` and `positions`
    (L,), the latter counted within the sample; `before` (T,), where in the row the state before each scored
    token is; `tokens` and `temperature` (T,).
    """

    members: tuple[int, ...]
    ids: Ids
    positions: Ids
    pieces: tuple[RowPiece, ...]
    before: Ids
    tokens: Ids
    temperature: npt.NDArray[np.float32]

    @property
    def branches(self) -> bool:
        return len(self.pieces) > 1


def plan(samples: Sequence[Sample], budget: int, sharing: Sharing) -> list[Row]:
    """Every sample in one row. `budget`: tokens of a row that costs no more memory than a micro-batch does.

    In the order of their ids, samples with much in common stand next to each other, and a chain's shorter
    ones before the longer. A branch is taken where at least half of a sample is shared.
    """
    if sharing == "nothing":
        return [_lay(samples, [[number]]) for number in range(len(samples))]
    found: list[list[list[int]]] = []
    last: Ids = np.empty(0, np.int64)
    tokens = longest = 0
    for chain in _chains(samples):
        ids = samples[chain[-1]].ids
        shared = _common(last, ids)
        added, longest = len(ids) - shared, max(longest, len(ids))
        worth = sharing == "branches" and shared >= max(LEAST_SHARED, added)
        if worth and tokens + added <= max(budget, LARGEST_ROW * longest):
            found[-1].append(chain)
            tokens += added
        else:
            found.append([chain])
            tokens = longest = len(ids)
        last = ids
    return [_lay(samples, chains) for chains in found]


def passes(rows: Sequence[Row], budget: int) -> list[list[Row]]:
    """Rows of each forward pass: together up to `budget` tokens; one that branches goes alone."""
    straight = [row for row in rows if not row.branches]
    packed = pack([len(row.ids) for row in straight], budget)
    return [*([straight[n] for n in places] for places in packed), *([row] for row in rows if row.branches)]


def _chains(samples: Sequence[Sample]) -> list[list[int]]:
    """Places of samples of which each begins with the one before it, in the order of their ids."""
    keys = [sample.ids.astype(">i8").tobytes() for sample in samples]  # whose bytes sort as the numbers do
    chains: list[list[int]] = []
    for number in sorted(range(len(keys)), key=lambda n: (keys[n], n)):
        if chains and keys[number].startswith(keys[chains[-1][-1]]):
            chains[-1].append(number)
        else:
            chains.append([number])
    return chains


def _common(one: Ids, other: Ids) -> int:
    """How many ids both begin with."""
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length


def _lay(samples: Sequence[Sample], chains: Sequence[Sequence[int]]) -> Row:
    last, path = (np.empty(0, np.int64) for _ in range(2))
    ids, positions, before, pieces = [], [], [], []
    start = 0
    for chain in chains:
        whole = samples[chain[-1]].ids
        after = _common(last, whole)
        pieces.append(RowPiece(start, after))
        path = np.concatenate([path[:after], np.arange(start, start + len(whole) - after)])
        ids.append(whole[after:])
        positions.append(np.arange(after, len(whole)))
        before += [path[samples[n].before] for n in chain]
        start, last = start + len(whole) - after, whole
    members = tuple(number for chain in chains for number in chain)
    own = [samples[number] for number in members]
    return Row(
        members,
        np.concatenate(ids),
        np.concatenate(positions),
        tuple(pieces),
        np.concatenate(before),
        np.concatenate([sample.tokens for sample in own]),
        np.repeat([np.float32(sample.temperature) for sample in own], [sample.scored for sample in own]),
    )
