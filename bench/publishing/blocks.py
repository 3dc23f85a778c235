"""Blocks of steady load: with nothing published, with a bare script, with Dukou; and turns scored again."""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from typing import Any

from sqlalchemy import text

from bench.publishing.figures import gaps_of, wrongly_labelled
from bench.publishing.learning import batch_to_first_token
from bench.publishing.plant import Plant
from bench.publishing.stack import Stack, plant_of
from bench.publishing.users import Answer, Users, first_token
from gateway.reconcile.sglang import Control, ControlError
from learner.train.trainer import Trainer

_PAUSE = 1.0  # seconds between two publishes
_WARM = 1.5  # seconds of load before a block begins to count
_BARE_LABEL = 900_000  # labels of the bare script: far from any version
_FIGURES_SECONDS = 120.0  # as long as a user waits for an answer
_SCORED = 150  # turns of a kind that are scored again
_BATCHES = 3
_ROLLBACKS = 2  # of each block
_TURNS = (
    "select session_id, prompt_ids, response_ids, response_logprobs, policy_version_min, policy_version_max "
    "from turn where session_id like 'dukou-%' and status = 'ok' and capture = 'sampled' order by id"
)


@dataclass(slots=True)
class Block:
    """What was seen in all blocks of one kind, and for Dukou's the seconds from pointer to first token."""

    rounds: list[list[Answer]] = field(default_factory=list)
    publishes: int = 0
    to_first_token: list[float] = field(default_factory=list)
    back_to_first_token: list[float] = field(default_factory=list)


def nothing(block: Block, seconds: float, users: Users) -> None:
    """No publish at all."""
    _under_load(block, users, lambda: time.sleep(seconds))


def bare(stack: Stack, block: Block, plants: Sequence[Plant], count: int, users: Users) -> None:
    """The engine's own pause → update → continue, driven by a script that does nothing else."""
    folders = cycle(plants)

    def publish() -> None:
        with Control(stack.engine_url) as control:
            for _ in range(count):
                block.publishes += 1
                control.pause("in_place")
                label = str(_BARE_LABEL + block.publishes)
                control.update_weights_from_disk(str(next(folders).path), label)
                control.continue_()
                time.sleep(_PAUSE)

    _under_load(block, users, publish)


def dukou(stack: Stack, block: Block, plants: Sequence[Plant], count: int, users: Users) -> None:
    """Versions written and made live, the last ones each after a rollback; the reconciler does the rest."""

    def work() -> None:
        for number in range(count):
            if number >= max(1, count - _ROLLBACKS):  # before the first there may be nothing to go back to
                _roll_back(stack, block, users)
            _publish(stack, block, plants, users)

    _under_load(block, users, work)


def _publish(stack: Stack, block: Block, plants: Sequence[Plant], users: Users) -> None:
    """Odd numbers get the first plant."""
    began = time.monotonic()
    number = stack.publish(plants)
    block.publishes += 1
    stack.wait(partial(_is_answered, stack, users, number), f"an answer of version {number}")
    block.to_first_token.append(first_token(users, number) - began)
    time.sleep(_PAUSE)


def _roll_back(stack: Stack, block: Block, users: Users) -> None:
    began = time.monotonic()
    old = stack.roll_back()
    stack.wait(lambda: first_token(users, old, began) > 0, f"an answer of version {old} again")
    block.back_to_first_token.append(first_token(users, old, began) - began)
    time.sleep(_PAUSE)


def learning(stack: Stack, block: Block, users: Users) -> list[float]:
    """Seconds from each full batch to the first token of its version. The first one loads the model, too."""
    trainer = Trainer(stack.db, stack.config)
    found: list[float] = []

    def train() -> None:
        for _ in range(_BATCHES):
            found.append(batch_to_first_token(stack, trainer, users))
            block.publishes += 1

    _under_load(block, users, train)
    return found[1:]


def wrong_labels(stack: Stack, plants: Sequence[Plant]) -> tuple[int, int]:
    """(turns of one version that the other plant explains better, turns scored). The users are gone."""
    with stack.db.connect() as connection:
        rows = connection.execute(text(_TURNS)).all()
    one = [row for row in rows if row.policy_version_min == row.policy_version_max and row.policy_version_min]
    labelled = one[:: max(1, len(one) // _SCORED)]
    with Control(stack.engine_url) as control:
        under = [_scores(control, stack, plant, labelled) for plant in plants]
    wrong = scored = 0
    for index, row in enumerate(labelled):
        claimed = plant_of(row.policy_version_min)
        ours, others = under[claimed][index], under[1 - claimed][index]
        if ours is not None and others is not None:
            scored += 1
            wrong += wrongly_labelled([float(value) for value in row.response_logprobs], ours, others)
    return wrong, scored


def _scores(
    control: Control, stack: Stack, plant: Plant, turns: Sequence[Any]
) -> list[list[float | None] | None]:
    """Log-probabilities of the turns' answers under one plant; None of one that the engine did not score."""
    adapter = None
    if stack.form == "adapter":
        adapter = f"scored-{plant.path.name}"
        control.load_lora(adapter, str(plant.path))
    else:
        control.update_weights_from_disk(str(plant.path), f"{_BARE_LABEL}", flush_cache=True)
    return [_score(control, turn, adapter) for turn in turns]


def _score(control: Control, turn: Any, adapter: str | None) -> list[float | None] | None:
    prompt, answer = turn.prompt_ids.tolist(), turn.response_ids.tolist()
    try:
        return control.score([*prompt, *answer], adapter=adapter)[len(prompt) - 1 :]
    except ControlError as error:
        print(f"a turn was not scored: {error}", file=sys.stderr)
        return None


def _is_answered(stack: Stack, users: Users, version: int) -> bool:
    return stack.served() == version and first_token(users, version) > 0


def _wait_for_figures(users: Users, counted: int) -> None:
    """Until an answer that counts has two tokens, which is what the figures are of. Raises TimeoutError."""
    deadline = time.monotonic() + _FIGURES_SECONDS
    while not gaps_of(users.answers[counted:]):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no answer was begun and seen within {_FIGURES_SECONDS:.0f} s")
        time.sleep(0.05)


def _under_load(block: Block, users: Users, work: Callable[[], None]) -> None:
    """Does the work while the users stream; what they began before it is not counted.

    A block is as long as its work, and longer where the machine is so slow that no answer was begun in it.
    """

    async def both() -> None:
        load = asyncio.create_task(users.run())
        await asyncio.sleep(_WARM)
        counted = len(users.answers)
        try:
            await asyncio.to_thread(work)
            await asyncio.to_thread(_wait_for_figures, users, counted)
        finally:
            users.stop()
        await load
        block.rounds.append(users.answers[counted:])

    asyncio.run(both())
