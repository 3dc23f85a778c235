"""Our loss and its gradient are TRL's, run in TRL's own environment on the same tensors."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from learner.train import loss

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".dukou" / "bench" / "trl" / "bin" / "python"
LENGTHS = [7, 5, 3, 6, 7, 2, 4, 1]
LONGEST, FIXED, LOW, HIGH = 7, 16, 0.2, 0.28

#: TRL's name, ours, and what else the case has.
CASES = [
    ("grpo", "sequence_mean", {}),
    ("bnpo", "token_mean", {}),
    ("dapo", "token_mean", {}),
    ("dr_grpo", "fixed_length", {}),
    ("grpo", "sequence_mean", {"kl": 0.1}),
    ("dapo", "token_mean", {"kl": 0.1}),
    ("dapo", "token_mean", {"dual": 3.0}),
    ("dapo", "token_mean", {"tis": 2.0, "kl": 0.1}),
]


def tensors(seed):
    """Per position of a padded batch: `new` and what it is held against, far enough for the clips to bind."""
    chance = np.random.default_rng(seed)
    new = -np.abs(chance.normal(1.0, 0.8, (len(LENGTHS), LONGEST)))
    near = {name: new + chance.normal(0, 0.5, new.shape) for name in ("old", "reference")}
    return {"new": new, **near, "rollout": near["old"] + chance.normal(0, 0.7, new.shape)}


def ours(data, mask, advantages, how, *, kl=0.0, dual=None, tis=None):
    flat = {name: torch.from_numpy(values[mask]) for name, values in data.items()}
    new = flat["new"].requires_grad_()
    each = torch.from_numpy(np.repeat(advantages, LENGTHS))
    per_token = loss.ppo_clip(new, flat["old"], each, low=LOW, high=HIGH, dual=dual)
    if tis:
        per_token = per_token * loss.importance_weight(flat["old"], flat["rollout"], tis)
    per_token = per_token + kl * loss.k3(new, flat["reference"])
    shares = torch.tensor(loss.token_weights(LENGTHS, how, FIXED), dtype=torch.float64)
    value = (per_token * shares.repeat_interleave(torch.tensor(LENGTHS))).sum()
    value.backward()
    return value.item(), new.grad.tolist()


def asked(data, mask, advantages, name, *, kl=0.0, dual=None, tis=None):
    """One case in TRL's words."""
    case = {key: data[key].tolist() for key in ("new", "old", "reference")}
    if tis:
        case["importance_sampling_ratio"] = np.exp(data["old"] - data["rollout"]).clip(max=tis).tolist()
    constants = {"low": LOW, "high": HIGH, "fixed_length": FIXED, "kl": kl, "dual": dual, "loss_type": name}
    return {**case, **constants, "mask": mask.astype(int).tolist(), "advantages": advantages.tolist()}


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="no TRL: `make bench B=trainer` installs it")
def test_loss_and_gradient_are_those_of_trl_itself():
    mask = np.arange(LONGEST)[None] < np.array(LENGTHS)[:, None]
    advantages = np.array([1.2, -0.7, 0.0, 0.4, -1.5, 0.9, 0.3, -0.6])
    runs = [(tensors(seed), *case) for seed in range(3) for case in CASES]
    cases = [asked(data, mask, advantages, name, **more) for data, name, _, more in runs]
    script = ROOT / "tests" / "fakes" / "trl_loss.py"
    done = subprocess.run(
        [PYTHON, script], input=json.dumps(cases), capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for (data, name, how, more), theirs in zip(runs, json.loads(done.stdout.splitlines()[-1]), strict=True):
        value, gradient = ours(data, mask, advantages, how, **more)
        assert value == pytest.approx(theirs["loss"], abs=1e-6), (name, more)
        assert gradient == pytest.approx(theirs["gradient"], abs=1e-6), (name, more)
