"""What users notice of publishes on a real engine, full weights and LoRA, beside two controls in one run.

Users stream without a pause through a worker. In blocks that take turns, nothing is published; a bare script
drives the engine's own pause → update → continue; or versions are made live and Dukou's reconciler brings
them. The users, the worker and the engine are the same in every block. Two planted versions that plainly
differ alternate, and afterwards turns are scored on both, so that a wrong version label is found. The last
publishes of a block come each after a rollback.

Three parts, each with an engine of its own: full weights, LoRA adapters, and full weights of a larger model.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from sqlalchemy.exc import DBAPIError

from bench.publishing import blocks, plants
from bench.publishing.blocks import Block
from bench.publishing.figures import (
    Outcomes,
    gaps_of,
    outcomes,
    percentile,
    ratio,
    stalls_of,
    usual_ratio,
)
from bench.publishing.stack import Stack
from bench.publishing.users import Users
from dukou.local.engine.models import CHAT_MODEL, TINY_MODEL
from dukou.local.engine.start import EngineDiedError
from dukou.store.versions import Form
from gateway.reconcile.sglang import ControlError

_USERS = 6


Part = Literal["full", "lora", "large"]

#: What a machine may do to a part: its figures are then missing, and those of the others are not.
_MISHAPS = (TimeoutError, ValueError, EngineDiedError, ControlError, DBAPIError)


@dataclass(frozen=True, slots=True)
class Asked:
    form: Form
    model: str
    publishes: int
    rounds: int  # how often the blocks take turns
    tokens: int  # of the longest answers


@dataclass(frozen=True, slots=True)
class Kind:
    """Figures of one kind of block. Seconds."""

    outcomes: Outcomes
    publishes: int
    rollbacks: int
    gap_p50: float
    gap_p99: float
    stall_p50: float
    stall_p99: float
    to_first_token: float | None  # median, from the pointer's move to the first token of the new version
    back_to_first_token: float | None  # the same of a rollback

    round_gaps: tuple[float, ...]  # p99, round by round
    round_stalls: tuple[float, ...]

    @classmethod
    def of(cls, block: Block) -> "Kind":
        answers = [answer for answers in block.rounds for answer in answers]
        gaps, stalls = gaps_of(answers), stalls_of(answers)
        return cls(
            outcomes(answers),
            block.publishes,
            len(block.back_to_first_token),
            percentile(gaps, 0.5),
            percentile(gaps, 0.99),
            percentile(stalls, 0.5),
            percentile(stalls, 0.99),
            percentile(block.to_first_token, 0.5) if block.to_first_token else None,
            percentile(block.back_to_first_token, 0.5) if block.back_to_first_token else None,
            tuple(percentile(gaps_of(answers), 0.99) for answers in block.rounds),
            tuple(percentile(stalls_of(answers), 0.99) for answers in block.rounds),
        )


@dataclass(frozen=True, slots=True)
class Measured:
    kinds: dict[str, Kind]  # none | bare | dukou | learning
    wrong: int
    scored: int
    batch_to_first_token: float  # median, seconds
    memory_growth: float  # of the engine, from the first round's publishes to the last's


def main() -> int:
    parts, publishes = _arguments()
    asked: dict[Part, Asked] = {
        "full": Asked("full", TINY_MODEL, publishes, 6, 96),
        "lora": Asked("adapter", TINY_MODEL, publishes, 6, 96),
        "large": Asked("full", CHAT_MODEL, max(2, publishes // 4), 2, 32),
    }
    found: dict[Part, Measured] = {}
    failed: dict[Part, str] = {}
    for part in parts:
        try:
            found[part] = measure(asked[part])
        except _MISHAPS as error:
            failed[part] = f"{type(error).__name__}: {error}"
            print(f"{part}: {failed[part]}", file=sys.stderr)
        else:
            _show(part, found[part])
    print(json.dumps({**summary(found), **({"not_measured": failed} if failed else {})}))
    return 1 if failed else 0


def measure(asked: Asked) -> Measured:
    """One engine, its blocks in turns, and the labels checked."""
    state = Path(tempfile.mkdtemp(prefix="dukou-publish-"))
    try:
        stack = Stack(state, asked.model, asked.form)
        try:
            return _measure(stack, asked, state)
        finally:
            stack.close()
    finally:
        shutil.rmtree(state)


def _measure(stack: Stack, asked: Asked, state: Path) -> Measured:
    if asked.form == "full":
        made = [plants.full(stack.base, state / f"plant-{factor}", factor) for factor in (1.5, 0.6)]
    else:
        made = [plants.adapter(stack.base, state / f"plant-{seed}", seed) for seed in (1, 2)]
    kinds = {name: Block() for name in ("none", "dukou", "learning")}
    kinds |= {"bare": Block()} if asked.form == "full" else {}
    each = max(1, asked.publishes // asked.rounds)
    memory: list[int] = []
    for verb in ("serve", "drain", "reconcile"):
        stack.begin(verb)
    for number in range(asked.rounds):
        stack.wait(stack.settled, "the live version on the engine")
        blocks.nothing(kinds["none"], 1.5 * each, _users(stack, asked, f"none-{number}"))
        blocks.dukou(stack, kinds["dukou"], made, each, _users(stack, asked, f"dukou-{number}"))
        memory.append(stack.engine_bytes())
        if asked.form == "full":
            with stack.asleep("reconcile"):
                blocks.bare(stack, kinds["bare"], made, each, _users(stack, asked, f"bare-{number}"))
    stack.wait(stack.settled, "the live version on the engine")
    batches = blocks.learning(stack, kinds["learning"], _users(stack, asked, "learning"))
    stack.end("reconcile")
    stack.drained()
    wrong, scored = blocks.wrong_labels(stack, made)
    shown = {name: Kind.of(block) for name, block in kinds.items()}
    return Measured(shown, wrong, scored, percentile(batches, 0.5), memory[-1] / memory[0])


def summary(found: Mapping[Part, Measured]) -> dict[str, Any]:
    """The line for machines. Ratios are the median of the rounds': blocks of a round see the same machine.
    `_pooled`: over all rounds' answers."""
    served = [part.kinds[name] for part in found.values() for name in ("dukou", "learning")]
    totals = {
        name: sum(asdict(kind.outcomes)[name] for kind in served)
        for name in ("failed", "aborted", "truncated")
    }
    line = {
        "publishes": sum(kind.publishes for kind in served),
        "rollbacks": sum(kind.rollbacks for kind in served),
        **totals,
        "wrong_version": sum(part.wrong for part in found.values()),
        "turns_scored_again": sum(part.scored for part in found.values()),
    }
    for name, part in found.items():
        line |= {f"{name}_{figure}": value for figure, value in _figures(part).items()}
    return line


def _figures(part: Measured) -> dict[str, float | None]:
    ours, none, bare = (part.kinds.get(name) for name in ("dukou", "none", "bare"))
    assert ours is not None
    assert none is not None
    figures = {
        "gap_p99_vs_no_publish": usual_ratio(ours.round_gaps, none.round_gaps),
        "gap_p99_vs_no_publish_pooled": ratio(ours.gap_p99, none.gap_p99),
        "memory_growth": round(part.memory_growth, 3),
        "batch_to_first_token_s": round(part.batch_to_first_token, 3),
        "pointer_to_first_token_s": _rounded(ours.to_first_token),
        "rollback_to_first_token_s": _rounded(ours.back_to_first_token),
    }
    return (
        figures if bare is None else {"stall_p99_vs_bare": ratio(ours.stall_p99, bare.stall_p99), **figures}
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _users(stack: Stack, asked: Asked, block: str) -> Users:
    return Users(stack.url, block, _USERS, asked.tokens)


def _show(part: Part, found: Measured) -> None:
    columns = (
        "publishes",
        "gap_p50",
        "gap_p99",
        "stall_p50",
        "stall_p99",
        "to_first_token",
        "back_to_first_token",
    )
    print(f"\n{part:<8}" + "".join(f"{name:>21}" for name in columns) + "  answers", file=sys.stderr)
    for name, kind in found.kinds.items():
        values = [getattr(kind, column) for column in columns]
        cells = ["-" if v is None else f"{v:.3f}" if isinstance(v, float) else str(v) for v in values]
        print(f"{name:<8}" + "".join(f"{cell:>21}" for cell in cells), asdict(kind.outcomes), file=sys.stderr)
    print(f"labels: {found.wrong} wrong of {found.scored} scored on both versions", file=sys.stderr)


def _arguments() -> tuple[list[Part], int]:
    parts: tuple[Part, ...] = ("full", "lora", "large")
    parser = argparse.ArgumentParser(prog="python -m bench.publish", description=__doc__)
    parser.add_argument("--json", action="store_true", help="accepted by every bench: the last line is JSON")
    parser.add_argument("--part", choices=parts, action="append", help="only this one; may be repeated")
    parser.add_argument("--publishes", type=int, default=24, help="full and lora; large: a quarter of them")
    given = parser.parse_args()
    return given.part or list(parts), given.publishes


if __name__ == "__main__":
    sys.exit(main())
