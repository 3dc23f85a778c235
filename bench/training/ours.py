"""One process of Dukou's trainer: loss, backward, AdamW, round after round. Prints JSON."""

import json
import resource
import time
import uuid
from pathlib import Path

import numpy as np
import torch

from bench.training.batch import Job, from_argv, sequences
from dukou.settings.learning import LossSettings, TrainerSettings
from learner.train import gradient, model, weights
from learner.train.samples import Sample


def samples(job: Job) -> list[Sample]:
    return [
        Sample(
            uuid.UUID(int=number),
            np.array(prompt + answer),
            len(prompt),
            np.full(len(answer), np.nan, np.float32),
            temperature=1.0,
            advantage=advantage,
            reward=0.0,
            staleness=0,
            cut_short=False,
        )
        for number, (prompt, answer, advantage) in enumerate(sequences(job))
    ]


def main() -> None:
    job = from_argv()
    torch.set_num_threads(1)
    settings = TrainerSettings.model_validate({"method": job.method, "max_tokens": max(job.lengths)})
    trained = weights.of(model.load(Path(job.model), torch.device("cpu")), settings, LossSettings(kl=0.0))
    optimizer = torch.optim.AdamW(trained.masters.values(), lr=1e-5, fused=True)
    batch, loss = samples(job), LossSettings(kl=0.0)
    seconds = []
    for _ in range(job.rounds):
        began = time.process_time()
        gradient.accumulate(trained, batch, loss, settings)
        optimizer.step()
        trained.spread()
        trained.clear()
        seconds.append(time.process_time() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"seconds": seconds, "peak_gib": peak}))


if __name__ == "__main__":
    main()
