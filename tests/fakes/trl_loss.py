"""TRL's own GRPO loss and its gradient on given log-probabilities. Runs in TRL's environment: cases come as
JSON on standard input, results leave as JSON on the last line."""

import json
import sys
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch


def identity(value: Any, **_: Any) -> Any:
    return value


def trainer(case: dict[str, Any], logprobs: torch.Tensor) -> SimpleNamespace:
    """What `_compute_loss` reads of its trainer; the model is the given log-probabilities."""
    beta = case["kl"]
    return SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, torch.zeros_like(logprobs), None),
        loss_type=case["loss_type"],
        importance_sampling_level="token",
        epsilon_low=case["low"],
        epsilon_high=case["high"],
        beta=beta,
        max_completion_length=case["fixed_length"],
        use_vllm="importance_sampling_ratio" in case,
        vllm_importance_sampling_correction=True,
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        current_gradient_accumulation_steps=1,
        args=SimpleNamespace(delta=case["dual"], use_bias_correction_kl=False, steps_per_generation=1),
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(num_processes=1, reduce=identity, gather=identity),
        _metrics=defaultdict(lambda: defaultdict(list)),
    )


def evaluate(case: dict[str, Any]) -> dict[str, Any]:
    from trl import GRPOTrainer  # type: ignore[import-not-found]

    def tensor(name: str) -> torch.Tensor:
        return torch.tensor(case[name], dtype=torch.float64)

    mask = torch.tensor(case["mask"])
    logprobs = tensor("new").requires_grad_()
    ids = torch.zeros_like(mask)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": mask[:, :1],
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": tensor("advantages"),
        "old_per_token_logps": tensor("old"),
        "ref_per_token_logps": tensor("reference"),
        "num_items_in_batch": mask.sum(),
    }
    if "importance_sampling_ratio" in case:
        inputs["importance_sampling_ratio"] = tensor("importance_sampling_ratio")
    loss = GRPOTrainer._compute_loss(trainer(case, logprobs), None, inputs)
    loss.backward()
    assert logprobs.grad is not None
    return {"loss": loss.item(), "gradient": logprobs.grad[mask.bool()].tolist()}


if __name__ == "__main__":
    print(json.dumps([evaluate(case) for case in json.load(sys.stdin)]))
