"""What users notice of publishes on a real engine, full weights and LoRA, beside two controls in one run.

Users stream without a pause through a worker. In blocks that take turns, nothing is published; a bare script
drives the engine's own pause → update → continue; or versions are made live and Dukou's reconciler brings
them. The users, the worker and the engine are the same in every block. Two planted versions that plainly
differ alternate, and afterwards turns are scored on both, so that a wrong version label is found.
"""

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.publishing import blocks, plants
from bench.publishing.blocks import Block
from bench.publishing.figures import Outcomes, outcomes, percentile, ratio
from bench.publishing.stack import Stack
from bench.publishing.users import Users
from store.versions import Form

_USERS = 6


@dataclass(frozen=True, slots=True)
class Asked:
    model: str
    publishes: int  # of each form
    rounds: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Kind:
    """Figures of one kind of block. Seconds."""

    outcomes: Outcomes
    publishes: int
    gap_p50: float
    gap_p99: float
    stall_p50: float
    stall_p99: float
    to_first_token: float | None  # median, from the pointer's move to the first token of the new version
    back_to_first_token: float | None  # the same of a rollback

    @classmethod
    def of(cls, block: Block) -> "Kind":
        whole = [answer for answer in block.answers if answer.chunks]
        gaps = [gap for answer in whole for gap in answer.gaps]
        stalls = [answer.stall for answer in whole]
        return cls(
            outcomes(block.answers),
            block.publishes,
            percentile(gaps, 0.5),
            percentile(gaps, 0.99),
            percentile(stalls, 0.5),
            percentile(stalls, 0.99),
            percentile(block.to_first_token, 0.5) if block.to_first_token else None,
            percentile(block.back_to_first_token, 0.5) if block.back_to_first_token else None,
        )


@dataclass(frozen=True, slots=True)
class Measured:
    kinds: dict[str, Kind]  # none | bare | dukou | learning
    wrong: int
    scored: int
    batch_to_first_token: float  # median, seconds
    memory_growth: float  # of the engine, from the first round's publishes to the last's


def main() -> int:
    asked = _arguments()
    full = measure("full", asked)
    _show("full", full)
    lora = measure("adapter", asked)
    _show("adapter", lora)
    print(json.dumps(summary(full, lora)))
    return 0


def measure(form: Form, asked: Asked) -> Measured:
    """One engine, its blocks in turns, and the labels checked."""
    state = Path(tempfile.mkdtemp(prefix="dukou-publish-"))
    try:
        stack = Stack(state, asked.model, form)
        try:
            return _measure(stack, form, asked, state)
        finally:
            stack.close()
    finally:
        shutil.rmtree(state)


def _measure(stack: Stack, form: Form, asked: Asked, state: Path) -> Measured:
    if form == "full":
        made = [plants.full(stack.base, state / f"plant-{factor}", factor) for factor in (1.5, 0.6)]
    else:
        made = [plants.adapter(stack.base, state / f"plant-{seed}", seed) for seed in (1, 2)]
    kinds = {name: Block() for name in ("none", "dukou", "learning")}
    kinds |= {"bare": Block()} if form == "full" else {}
    each = max(1, asked.publishes // asked.rounds)
    memory: list[int] = []
    for verb in ("serve", "drain"):
        stack.begin(verb)
    for number in range(asked.rounds):
        stack.begin("reconcile")
        stack.wait(lambda: stack.served() == stack.live(), "the live version on the engine")
        blocks.nothing(kinds["none"], 1.5 * each, _users(stack, asked, f"none-{number}"))
        blocks.dukou(stack, kinds["dukou"], made, each, _users(stack, asked, f"dukou-{number}"))
        memory.append(stack.engine_bytes())
        stack.end("reconcile")
        if form == "full":
            blocks.bare(stack, kinds["bare"], made, each, _users(stack, asked, f"bare-{number}"))
    stack.begin("reconcile")
    stack.wait(lambda: stack.served() == stack.live(), "the live version on the engine")
    batches = blocks.learning(stack, kinds["learning"], _users(stack, asked, "learning"))
    stack.end("reconcile")
    stack.drained()
    wrong, scored = blocks.wrong_labels(stack, made)
    shown = {name: Kind.of(block) for name, block in kinds.items()}
    return Measured(shown, wrong, scored, percentile(batches, 0.5), memory[-1] / memory[0])


def summary(full: Measured, lora: Measured) -> dict[str, Any]:
    """The line for machines; ratios are within one run."""
    ours = [full.kinds["dukou"], lora.kinds["dukou"]]
    served = [found.kinds[name] for found in (full, lora) for name in ("dukou", "learning")]
    totals = {
        name: sum(asdict(kind.outcomes)[name] for kind in served)
        for name in ("failed", "aborted", "truncated")
    }
    return {
        "publishes": sum(kind.publishes for kind in ours),
        **totals,
        "wrong_version": full.wrong + lora.wrong,
        "turns_scored_again": full.scored + lora.scored,
        "lora_gap_p99_vs_no_publish": ratio(lora.kinds["dukou"].gap_p99, lora.kinds["none"].gap_p99),
        "full_gap_p99_vs_no_publish": ratio(full.kinds["dukou"].gap_p99, full.kinds["none"].gap_p99),
        "full_stall_p99_vs_bare": ratio(full.kinds["dukou"].stall_p99, full.kinds["bare"].stall_p99),
        "full_memory_growth": round(full.memory_growth, 3),
        "lora_memory_growth": round(lora.memory_growth, 3),
        "full_batch_to_first_token_s": full.batch_to_first_token,
        "lora_batch_to_first_token_s": lora.batch_to_first_token,
        "full_pointer_to_first_token_s": full.kinds["dukou"].to_first_token,
        "lora_pointer_to_first_token_s": lora.kinds["dukou"].to_first_token,
        "full_rollback_to_first_token_s": full.kinds["dukou"].back_to_first_token,
        "lora_rollback_to_first_token_s": lora.kinds["dukou"].back_to_first_token,
    }


def _users(stack: Stack, asked: Asked, block: str) -> Users:
    return Users(stack.url, block, _USERS, asked.tokens)


def _show(form: str, found: Measured) -> None:
    columns = (
        "publishes",
        "gap_p50",
        "gap_p99",
        "stall_p50",
        "stall_p99",
        "to_first_token",
        "back_to_first_token",
    )
    print(f"\n{form:<8}" + "".join(f"{name:>21}" for name in columns) + "  answers", file=sys.stderr)
    for name, kind in found.kinds.items():
        values = [getattr(kind, column) for column in columns]
        cells = ["-" if v is None else f"{v:.3f}" if isinstance(v, float) else str(v) for v in values]
        print(f"{name:<8}" + "".join(f"{cell:>21}" for cell in cells), asdict(kind.outcomes), file=sys.stderr)
    print(f"labels: {found.wrong} wrong of {found.scored} scored on both versions", file=sys.stderr)


def _arguments() -> Asked:
    parser = argparse.ArgumentParser(prog="python -m bench.publish", description=__doc__)
    parser.add_argument("--json", action="store_true", help="accepted by every bench: the last line is JSON")
    parser.add_argument("--model", default="tiny-llama", help="a folder under <state>/models")
    parser.add_argument("--publishes", type=int, default=27, help="of each form")
    parser.add_argument("--rounds", type=int, default=3, help="how often the blocks take turns")
    parser.add_argument("--tokens", type=int, default=96, help="of an answer")
    given = parser.parse_args()
    return Asked(given.model, given.publishes, given.rounds, given.tokens)


if __name__ == "__main__":
    sys.exit(main())
