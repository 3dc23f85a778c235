"""A sample: token ids, log-probabilities and one advantage, of one length. Cut once, asserted once.

Rows of a forward pass: what several samples begin with is in a row once. Pure, and of the batch alone.

The turns of a session are a *chain*: the prompt of each begins with the ids of the one before, its answer
included, and attention is causal, so a pass over the longest is the pass of all. Samples that part ways
(siblings, sessions under one system prompt) *branch*: a row holds the first whole, of each other one only how
it goes on, and a token sees what comes before it in its own sample (`learner/train/attention.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias
from uuid import UUID

import numpy as np
import numpy.typing as npt

from dukou.store import spans
from dukou.store.batches import SampleRow


@dataclass(frozen=True, slots=True)
class Sample:
    """A turn as the trainer sees it. With P prompt ids and T answer ids:

    `ids` int64 (P + T,); `prompt_length` P ≥ 1; `rollout` float32 (T,), log-probabilities of the answer's
    tokens as recorded at `temperature`, NaN where the engine gave none; `advantage` of every scored token;
    `hinted_prompt` int64 (≥ 1,); `trained` int64 (S,), rising places in the answer, of 0 … T − 1.
    Raises ValueError where the lengths do not fit: nothing is ever cut to the shorter one.

    Only what is *scored* counts: in loss, KL, metrics and lengths. An answer token that is not stands before
    later ones, which see it, as a prompt's does.
    """

    turn_id: UUID
    ids: npt.NDArray[np.int64]
    prompt_length: int
    rollout: npt.NDArray[np.float32]
    temperature: float
    advantage: float
    reward: float
    staleness: int
    cut_short: bool  # the answer ended at its token limit
    hinted_prompt: npt.NDArray[np.int64] | None = None  # the prompt with the hint in it; None: no teacher
    trained: npt.NDArray[np.int64] | None = None  # which answer tokens are scored; None: all

    def __post_init__(self) -> None:
        if self.prompt_length < 1:
            raise ValueError(f"turn {self.turn_id}: an answer's first token needs a prompt before it")
        if len(self.ids) - self.prompt_length != len(self.rollout):
            raise ValueError(
                f"turn {self.turn_id}: {len(self.ids) - self.prompt_length} answer ids, "
                f"{len(self.rollout)} log-probabilities"
            )
        if not self.temperature > 0:
            raise ValueError(f"turn {self.turn_id}: temperature {self.temperature} is not above 0")
        if self.trained is not None and not len(self.trained):
            raise ValueError(f"turn {self.turn_id}: no token of its answer may be trained")

    @property
    def scored(self) -> int:
        """How many answer tokens are scored (S)."""
        return len(self.rollout) if self.trained is None else len(self.trained)

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        """The scored tokens' ids, (S,)."""
        return self.answer if self.trained is None else self.answer[self.trained]

    @property
    def recorded(self) -> npt.NDArray[np.float32]:
        """The scored tokens' log-probabilities as recorded, (S,)."""
        return self.rollout if self.trained is None else self.rollout[self.trained]

    @property
    def before(self) -> npt.NDArray[np.int64]:
        """Where in `ids` the token before each scored one is, (S,)."""
        first = self.prompt_length - 1
        return np.arange(first, len(self.ids) - 1) if self.trained is None else first + self.trained

    @property
    def answer(self) -> npt.NDArray[np.int64]:
        """The answer's ids, (T,)."""
        return self.ids[self.prompt_length :]

    def as_hinted(self) -> "Sample":
        """The same answer under the prompt with the hint. Raises ValueError where there is none."""
        if self.hinted_prompt is None:
            raise ValueError(f"turn {self.turn_id} has no hint")
        ids = np.concatenate([self.hinted_prompt, self.answer])
        return replace(self, ids=ids, prompt_length=len(self.hinted_prompt), hinted_prompt=None)


def from_turn(row: SampleRow) -> Sample:
    """A sample from its row. Raises ValueError where the row's lengths do not fit."""
    answer, prompt = row.response_ids.astype(np.int64), row.prompt_ids.astype(np.int64)
    recorded, trained = row.response_logprobs, row.trained_tokens
    return Sample(
        turn_id=row.turn_id,
        ids=np.concatenate([prompt, answer]),
        prompt_length=len(prompt),
        rollout=np.full(len(answer), np.nan, np.float32) if recorded is None else recorded,
        temperature=row.temperature,
        advantage=row.advantage,
        reward=row.reward,
        staleness=row.staleness,
        cut_short=row.finish_reason == "length",
        hinted_prompt=None if row.hint_prompt_ids is None else row.hint_prompt_ids.astype(np.int64),
        trained=None if trained is None else spans.positions(trained, len(answer)),
    )


def pack(lengths: list[int], budget: int, waste: float = 0.1) -> list[list[int]]:
    """Cuts sequences into micro-batches: lists of positions, sorted by length, shortest first.

    A micro-batch takes at most `budget` tokens including padding (a longer sequence goes alone), and at most
    a share `waste` of it is padding: padding to the longest is slower than one sequence at a time.
    """
    packs: list[list[int]] = []
    for position in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        longest = lengths[position]
        if packs:
            padded = longest * (len(packs[-1]) + 1)
            full = longest + sum(lengths[i] for i in packs[-1])
            if padded <= budget and padded - full <= waste * padded:
                packs[-1].append(position)
                continue
        packs.append([position])
    return packs


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
