"""One process of TRL's GRPO step on the same batch: loss, backward, AdamW. Runs in TRL's environment."""

import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.training.batch import Job, from_argv, sequences


def trainer(job: Job, folder: str) -> Any:
    """TRL's own trainer at its defaults (bfloat16 autocast over float32 weights), without a KL term."""
    from datasets import Dataset  # type: ignore[import-not-found]
    from peft import LoraConfig  # type: ignore[import-not-found]
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

    count = len(job.lengths)
    adapter = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    return GRPOTrainer(
        model=job.model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            report_to="none",
            beta=0.0,
            per_device_train_batch_size=max(count, 2),
            num_generations=max(count, 2),
            gradient_checkpointing=False,  # it would be slower; its memory is the better for it
        ),
        train_dataset=Dataset.from_dict({"prompt": ["a"] * max(count, 2)}),
        peft_config=adapter if job.method == "lora" else None,
    )


def padded(rows: list[list[int]], *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, rows))
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        place = slice(longest - len(row), None) if left else slice(0, len(row))
        ids[number, place], mask[number, place] = torch.tensor(row), 1
    return ids, mask


def inputs(job: Job) -> dict[str, torch.Tensor]:
    """The batch as TRL's generation leaves it: prompts padded on the left, answers on the right."""
    made = sequences(job)
    prompt_ids, prompt_mask = padded([prompt for prompt, _, _ in made], left=True)
    completion_ids, completion_mask = padded([answer for _, answer, _ in made], left=False)
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "advantages": torch.tensor([advantage for _, _, advantage in made]),
        "num_items_in_batch": completion_mask.sum(),
    }


def main() -> None:
    job = from_argv()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        peer = trainer(job, folder)
        peer.current_gradient_accumulation_steps = 1
        model = peer.accelerator.prepare_model(peer.model)
        model.train()
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)
        batch, seconds = inputs(job), []
        for _ in range(job.rounds):
            began = time.process_time()
            peer.compute_loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            seconds.append(time.process_time() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"seconds": seconds, "peak_gib": peak}))


if __name__ == "__main__":
    main()
