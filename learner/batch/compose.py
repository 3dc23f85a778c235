"""What goes into a batch: the rules that drop a turn, and the advantages of those that stay. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt

from learner.batch import advantage
from learner.batch.baseline import Observation, centre, session_key
from store.config_model import Advantage


@dataclass(frozen=True, slots=True)
class Candidate:
    """A scored turn that asks to be in a batch."""

    turn_id: UUID
    tenant: str
    session_id: str
    prompt_hash: bytes | None  # equal for regenerations of one prompt
    task: str  # learner.batch.baseline.task_class
    version_min: int | None
    version_max: int | None
    tokens: int  # prompt plus answer
    answer_tokens: int
    lowest_id: int | None
    highest_id: int | None
    reward: float | None  # latest score that is not NULL


@dataclass(frozen=True, slots=True)
class Limits:
    """What a turn is held against. `depth` is each ancestor's distance from the live version (itself 0)."""

    depth: Mapping[int, int]
    max_staleness: int
    max_tokens: int
    vocabulary: int  # ids of the model: 0 … vocabulary − 1


@dataclass(frozen=True, slots=True)
class Member:
    """A sample's numbers in its batch."""

    turn_id: UUID
    reward: float
    baseline: float
    advantage: float
    staleness: int


@dataclass(frozen=True, slots=True)
class Batch:
    members: list[Member]
    dropped: dict[UUID, str]  # turn → reason
    baseline: dict[str, Any]  # the running baseline's state after this batch


Rule = Callable[[Candidate, Limits], bool]

#: Reason (store/stages.py) and when it applies; the first that does is the turn's reason.
RULES: tuple[tuple[str, Rule], ...] = (
    ("no_quorum", lambda turn, _: turn.reward is None),
    ("version_unknown", lambda turn, _: turn.version_min is None or turn.version_max is None),
    ("empty_answer", lambda turn, _: turn.answer_tokens == 0),
    ("no_ids", lambda turn, _: turn.tokens == turn.answer_tokens),
    (
        "not_an_ancestor",
        lambda turn, limits: turn.version_min not in limits.depth or turn.version_max not in limits.depth,
    ),
    ("stale", lambda turn, limits: staleness(turn, limits) > limits.max_staleness),
    ("too_long", lambda turn, limits: turn.tokens > limits.max_tokens),
    (
        "out_of_vocabulary",
        lambda turn, limits: (turn.lowest_id or 0) < 0 or (turn.highest_id or 0) >= limits.vocabulary,
    ),
)


def staleness(turn: Candidate, limits: Limits) -> int:
    """Versions from the live one back to the *oldest* version that had a part in the answer; never negative.

    Raises KeyError where that version is no ancestor of the live one (the rule before has dropped those).
    """
    if turn.version_min is None:
        raise KeyError(f"turn {turn.turn_id} has no version")
    return limits.depth[turn.version_min]


def why_dropped(turn: Candidate, limits: Limits) -> str | None:
    """The reason why this turn cannot be trained, or None."""
    return next((reason for reason, applies in RULES if applies(turn, limits)), None)


def assemble(
    turns: Sequence[Candidate], limits: Limits, settings: Advantage, state: Mapping[str, Any] | None
) -> Batch:
    """Advantages for turns that passed the rules. Raises ValueError where one has no reward.

    With an advantage over groups, a sample whose group has no spread is dropped (`no_spread`): it carries no
    signal, and must not count in any denominator either. The running baseline's state moves on in any case.
    """
    rewards = np.array([_known(turn) for turn in turns])
    running = centre(
        [Observation(session_key(t.tenant, t.session_id), t.task, _known(t)) for t in turns],
        state,
        half_life=settings.half_life,
        deviation_floor=settings.deviation_floor,
    )
    if settings.kind == "running":
        baselines, advantages = np.array(running.baselines), np.array(running.advantages)
        kept = np.ones(len(turns), dtype=bool)
    else:
        baselines, advantages, kept = _over_groups(rewards, _groups(turns, settings.kind), settings.kind)
    members = [
        Member(
            turn.turn_id,
            float(rewards[i]),
            float(baselines[i]),
            float(advantages[i]),
            staleness(turn, limits),
        )
        for i, turn in enumerate(turns)
        if kept[i]
    ]
    dropped = {turn.turn_id: "no_spread" for i, turn in enumerate(turns) if not kept[i]}
    return Batch(members, dropped, running.state)


def _known(turn: Candidate) -> float:
    if turn.reward is None:
        raise ValueError(f"turn {turn.turn_id} has no reward")
    return turn.reward


def _groups(turns: Sequence[Candidate], kind: str) -> list[object]:
    """A tenant's siblings (regenerations, equal prompts) share a group; `batch` is one group."""
    if kind == "batch":
        return [None] * len(turns)
    return [(t.tenant, t.prompt_hash) if t.prompt_hash else t.turn_id for t in turns]


def _over_groups(
    rewards: advantage.Vector, groups: list[object], kind: str
) -> tuple[advantage.Vector, advantage.Vector, npt.NDArray[np.bool_]]:
    """Baseline (taken off before any division), advantage, and whether the sample stays; (N,) each."""
    if kind == "raw":
        return np.zeros(len(rewards)), advantage.raw(rewards), np.ones(len(rewards), dtype=bool)
    alive = advantage.has_spread(rewards, groups)
    if kind == "leave_one_out":
        advantages = advantage.leave_one_out(rewards, groups)
        return rewards - advantages, advantages, alive
    centred = advantage.over_groups(rewards, groups, divide=False)
    advantages = centred if kind == "group_mean" else advantage.over_groups(rewards, groups)
    return rewards - centred, advantages, alive
