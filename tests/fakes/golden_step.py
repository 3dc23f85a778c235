"""Digests of the masters after two steps on a fixed batch, per method and loss; printed as JSON."""

import hashlib
import json
import sys
from pathlib import Path

import torch
from torch.nn.utils import clip_grad_norm_

from dukou.settings.learning import LossSettings, TrainerSettings
from learner.train import gradient, model, weights
from tests.fakes.tiny_llama import save
from tests.unit.test_objective import batch

CASES = {
    "lora": (TrainerSettings(lora_rank=4, micro_batch_tokens=64), LossSettings(kl=0.1)),
    "full": (TrainerSettings(method="full", learning_rate=1e-3), LossSettings(kl=0.1)),
    "sequence mean": (TrainerSettings(lora_rank=4), LossSettings(aggregation="sequence_mean")),
}


def step_digest(folder: Path, settings: TrainerSettings, loss: LossSettings) -> str:
    trained = weights.of(model.load(folder, torch.device("cpu")), settings, loss)
    adamw = gradient.adamw(trained.masters.values())
    for _ in range(2):
        gradient.accumulate(trained, batch(), loss, settings)
        clip_grad_norm_(trained.masters.values(), settings.grad_clip)
        gradient.step(adamw, settings)
        trained.spread()
        trained.clear()
    digest = hashlib.sha256()
    for name, master in sorted(trained.masters.items()):
        digest.update(name.encode() + master.detach().numpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = False
    base = save(Path(sys.argv[1]) / "base")
    print(json.dumps({name: step_digest(base, *case) for name, case in CASES.items()}))
