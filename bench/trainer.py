"""A training step beside TRL's GRPO step: tokens per CPU second, peak memory, how both grow, and what it is
worth that a shared prefix is computed once."""

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import installed
from bench.training.batch import Job

RAGGED = (64, 128, 192, 256, 320, 384, 448, 512)
PEER = ("torch==2.13.0", "trl==1.16.0", "transformers==5.24.0", "peft==0.21.2")
LENGTHS = (512, 2048, 8192)
VOCABULARIES = (49_152, 196_608)
TURNS = 2


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.trainer", description=__doc__)
    parser.add_argument(
        "--json", action="store_true", help="for every benchmark alike: the last line is JSON"
    )
    parser.add_argument("--rounds", type=int, default=2, help="rounds of each process; the first warms up")
    parser.add_argument("--growth", action="store_true", help="length and vocabulary too (ten minutes more)")
    parser.add_argument("--shared", action="store_true", help="shared prefixes too (ten minutes more)")
    options = parser.parse_args()
    state = installed().root.resolve()
    peer = peer_python(state)
    model = str(state / "models" / "smollm2-135m")
    found: dict[str, Any] = {}
    for method in ("full", "lora"):
        job = Job(model, method, RAGGED, 49_000, options.rounds)
        found |= beside(peer, job, method)
    if options.growth:
        found["length"] = by_length(peer, model)
        found["vocabulary"] = by_vocabulary(peer, state)
    if options.shared:
        found["shared"] = {method: shared(model, method) for method in ("full", "lora")}
    print(json.dumps(found))
    return 0


def beside(peer: Path, job: Job, name: str) -> dict[str, Any]:
    """Both sides of one job in turns, the best of each, and the ratios."""
    pairs = [(ours(job), trl(peer, job)) for _ in range(TURNS)]
    mine, theirs = (best([pair[side] for pair in pairs]) for side in (0, 1))
    return {
        f"{name}_vs_trl": round(mine["tokens_per_cpu_second"] / theirs["tokens_per_cpu_second"], 2),
        f"{name}_peak_vs_trl": round(mine["peak_gib"] / theirs["peak_gib"], 3),
        f"{name}_ours": mine,
        f"{name}_trl": theirs,
    }


def best(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    """The fastest run, with the largest peak of all: other work on the machine only slows."""
    fastest = max(runs, key=lambda run: run["tokens_per_cpu_second"])
    return {**fastest, "peak_gib": max(run["peak_gib"] for run in runs)}


def by_length(peer: Path, model: str) -> list[dict[str, Any]]:
    """One sequence of each length with an adapter. TRL's logits take too much memory for the longest."""
    points = []
    for length in LENGTHS:
        job = Job(model, "lora", (length,), 49_000, 1)
        theirs = trl(peer, job) if length < LENGTHS[-1] else None
        points.append({"tokens": length, "ours": ours(job), "trl": theirs})
    return points


def by_vocabulary(peer: Path, state: Path) -> list[dict[str, Any]]:
    """A random model of two layers whose vocabulary alone grows, on two sequences of 2,048."""
    points = []
    with tempfile.TemporaryDirectory() as folder:
        for size in VOCABULARIES:
            path = random_model(Path(folder) / str(size), state / "models" / "smollm2-135m", size)
            job = Job(str(path), "lora", (2048, 2048), 49_000, 1)
            points.append({"vocabulary": size, "ours": ours(job), "trl": trl(peer, job)})
    return points


def shared(model: str, method: str) -> Any:
    """Batches of samples that begin alike, with and without sharing, in one process of Dukou's trainer."""
    command = [sys.executable, "-m", "bench.training.shared", model, method]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def random_model(folder: Path, tokenizer: Path, vocabulary: int) -> Path:
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        dtype="bfloat16",
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
    return folder


def ours(job: Job) -> dict[str, float]:
    return measured("Dukou", [sys.executable, "-m", "bench.training.ours"], job)


def trl(peer: Path, job: Job) -> dict[str, float]:
    return measured("TRL", [str(peer), str(Path(__file__).parent / "training" / "trl_step.py")], job)


def measured(name: str, command: Sequence[str], job: Job) -> dict[str, float]:
    """Best round and peak of one process. Raises CalledProcessError with what it said."""
    done = subprocess.run([*command, json.dumps(asdict(job))], check=False, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        done.check_returncode()
    reply = json.loads(done.stdout.splitlines()[-1])
    speed, peak = job.tokens / min(reply["seconds"]), reply["peak_gib"]
    print(
        f"{name:<6} {job.method:<5} {job.tokens:>6} tokens {speed:8.1f} a CPU second {peak:7.2f} GiB at most",
        file=sys.stderr,
    )
    return {"tokens_per_cpu_second": round(speed, 1), "peak_gib": round(peak, 2)}


def peer_python(state: Path) -> Path:
    """TRL's environment, made the first time: its pins disagree with ours."""
    folder = state / "bench" / "trl"
    python = folder / "bin" / "python"
    known = subprocess.run([python, "-c", "import trl, peft"], check=False) if python.exists() else None
    if known is None or known.returncode:
        print("installing TRL into its own environment (minutes, some GB)", file=sys.stderr)
        venv.create(folder, clear=True, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PEER], check=True)
    return python


if __name__ == "__main__":
    raise SystemExit(main())
