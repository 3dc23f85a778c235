"""A sample: token ids, log-probabilities and one advantage, of one length. Cut once, asserted once."""

from dataclasses import dataclass, replace
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
