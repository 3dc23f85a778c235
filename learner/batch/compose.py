"""The samples of a batch: rewards and advantages of the turns that were taken. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np
import numpy.typing as npt

from dukou.settings.learning import AdvantageSettings
from dukou.store.batches import BaselineState, Candidate, NewSample
from learner.batch import advantage
from learner.batch.advantage import Observation, centre, session_key
from learner.batch.rules import Limits, staleness, usable_hint


@dataclass(frozen=True, slots=True)
class ComposedBatch:
    samples: list[NewSample]
    dropped: dict[UUID, str]  # turn → reason
    baseline: BaselineState  # after this batch


def assemble(
    turns: Sequence[Candidate],
    limits: Limits,
    settings: AdvantageSettings,
    state: BaselineState,
    *,
    hints: bool,
) -> ComposedBatch:
    """Advantages for turns that passed the rules. Raises ValueError where one has no reward.

    With an advantage over groups, a sample whose group has no spread is dropped (`no_spread`): it carries no
    signal, and must not count in any denominator either. The running baseline's state moves on in any case.
    `hints`: whether a teacher takes part; a sample with a hint then carries one, whatever its group says.
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
        kept |= np.array([hints and usable_hint(turn, limits) is not None for turn in turns])
    samples = [
        NewSample(
            turn.turn_id,
            float(rewards[i]),
            float(baselines[i]),
            float(advantages[i]),
            staleness(turn, limits),
            turn.task,
            usable_hint(turn, limits) if hints else None,
        )
        for i, turn in enumerate(turns)
        if kept[i]
    ]
    dropped = {turn.turn_id: "no_spread" for i, turn in enumerate(turns) if not kept[i]}
    return ComposedBatch(samples, dropped, running.state)


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
