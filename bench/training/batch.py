"""The batch of both sides: ragged, half of each sequence scored. Imported in the environment of TRL too."""

import json
import sys
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Job:
    """What one process measures: a model folder, `full` or `lora`, the sequences' lengths, and how often."""

    model: str
    method: str
    lengths: tuple[int, ...]
    vocabulary: int
    rounds: int

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


def from_argv() -> Job:
    fields = json.loads(sys.argv[1])
    return Job(**{**fields, "lengths": tuple(fields["lengths"])})


def sequences(job: Job) -> list[tuple[list[int], list[int], float]]:
    """(prompt ids, answer ids, advantage) of each sequence; the same for the same job."""
    generator = np.random.default_rng(0)
    made = []
    for number, length in enumerate(job.lengths):
        ids = generator.integers(0, job.vocabulary, length).tolist()
        made.append((ids[: length - length // 2], ids[length - length // 2 :], (-1.0) ** number))
    return made
