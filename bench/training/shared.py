"""Gradients of batches whose samples begin alike, with and without sharing, in turns. Prints JSON."""

import json
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dukou.settings.learning import LossSettings, TrainerSettings
from learner.train import gradient, model, weights
from learner.train.samples import Ids, Sample, Sharing, plan

ROUNDS = 2
VOCABULARY = 49_000
SHARING: tuple[Sharing, ...] = ("nothing", "branches")


def batches() -> dict[str, list[Sample]]:
    generator = np.random.default_rng(0)
    return {
        "16 turns of 3 sessions": [s for turns in (6, 5, 5) for s in session(generator, turns)],
        "6 turns of a session": session(generator, 6),
        "8 siblings": siblings(generator, 8, prompt=1000, answer=64),
        "8 siblings, short": siblings(generator, 8, prompt=32, answer=32),
        "8 alone": [turn for _ in range(8) for turn in session(generator, 1)],
    }


def session(generator: np.random.Generator, turns: int) -> list[Sample]:
    """A prompt of 120 tokens; messages of 40 and answers of 80, each prompt the last with its answer."""
    ids, samples = generator.integers(0, VOCABULARY, 120), []
    for _ in range(turns):
        ids = np.concatenate([ids, generator.integers(0, VOCABULARY, 40 + 80)])
        samples.append(sample(ids, 80))
    return samples


def siblings(generator: np.random.Generator, count: int, *, prompt: int, answer: int) -> list[Sample]:
    before = generator.integers(0, VOCABULARY, prompt)
    answers = (generator.integers(0, VOCABULARY, answer) for _ in range(count))
    return [sample(np.concatenate([before, ids]), answer) for ids in answers]


def sample(ids: Ids, answer: int) -> Sample:
    rollout = np.full(answer, np.nan, np.float32)
    return Sample(uuid.uuid4(), ids, len(ids) - answer, rollout, 1.0, 1.0, 0.0, 0, False)


def seconds(
    trained: weights.Weights, batch: Sequence[Sample], sharing: Sharing, settings: TrainerSettings
) -> float:
    trained.model.sharing = sharing
    began = time.process_time()
    gradient.accumulate(trained, batch, LossSettings(kl=0.0), settings)
    trained.clear()
    return time.process_time() - began


def measured(trained: weights.Weights, batch: Sequence[Sample], settings: TrainerSettings) -> dict[str, Any]:
    """Tokens of the samples and of the passes, and CPU seconds, without and with sharing: the best rounds."""
    budget = gradient.token_budget(trained, settings)
    rounds = [[seconds(trained, batch, sharing, settings) for sharing in SHARING] for _ in range(ROUNDS)]
    apart, together = (min(taken) for taken in zip(*rounds, strict=True))
    return {
        "tokens": sum(len(s.ids) for s in batch),
        "computed": sum(len(row.ids) for row in plan(batch, budget, "branches")),
        "apart": round(apart, 2),
        "together": round(together, 2),
        "faster": round(apart / together, 2),
    }


def main() -> None:
    folder, method = sys.argv[1:3]
    torch.set_num_threads(1)
    settings, made, found = TrainerSettings.model_validate({"method": method}), batches(), {}
    trained = weights.of(model.load(Path(folder), torch.device("cpu")), settings, LossSettings(kl=0.0))
    seconds(trained, made["8 alone"], "nothing", settings)  # warms up
    for name, batch in made.items():
        found[name] = measured(trained, batch, settings)
        print(f"{method:<5} {name:<24} {found[name]}", file=sys.stderr, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
