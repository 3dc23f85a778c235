"""The funnel, pure: which turns got how far, how many wait at each step, and why the others left there."""

from collections.abc import Iterable
from dataclasses import dataclass

from dukou.store.funnel import Count, Snapshot
from dukou.store.states import Stage

#: The steps of a turn's way, in order.
STEPS = ("seen", "recorded", "main", "next state", "scored", "counted", "in a batch", "trained", "published")

#: The step that a turn dropped for this reason did not reach: one line for each of `states.REASONS`.
LOST_BEFORE: dict[str, str] = {
    **dict.fromkeys(("side", "endpoint", "unreadable"), "main"),
    **dict.fromkeys(
        ("status", "no_ids", "no_logprobs", "logprob_count_mismatch", "logprob_not_finite"), "next state"
    ),
    **dict.fromkeys(("ending", "logprob_impossible", "token_count_mismatch"), "next state"),
    **dict.fromkeys(
        (
            *("version_unknown", "empty_answer", "retry", "store_false"),
            *("no_next_state", "forgotten"),
        ),
        "next state",
    ),
    **dict.fromkeys(("sampling_unknown", "sampling_greedy", "sampling_constrained"), "next state"),
    **dict.fromkeys(("sampling_truncated", "no_quorum", "abstained"), "scored"),
    **dict.fromkeys(("stale", "not_an_ancestor", "too_long", "out_of_vocabulary", "no_spread"), "counted"),
    **dict.fromkeys(("no_hint", "zero_score", "cut_short"), "counted"),
    **dict.fromkeys(("not_finite", "grad_spike", "drift"), "trained"),
}

_LAST_STEP: dict[Stage, str] = {
    Stage.AWAITING_NEXT: "main",
    Stage.SCORABLE: "next state",
    Stage.SCORED: "counted",
    Stage.BATCHED: "in a batch",
    Stage.TRAINED: "trained",
}


@dataclass(frozen=True)
class FunnelStep:
    """`turns` reached it (None: unknown), `waiting` go no further yet, `lost` by reason never got there."""

    name: str
    turns: int | None
    waiting: int
    oldest: float | None
    lost: tuple[tuple[str, int], ...]


def funnel(totals: Iterable[Count], snapshot: Snapshot) -> tuple[FunnelStep, ...]:
    """Every step of STEPS, from what `dukou.store.funnel` counted."""
    counts = tuple(totals)
    return tuple(
        FunnelStep(
            name,
            _reached(name, counts, snapshot),
            waiting=sum(c.turns for c in counts if _waits_at(c, name)),
            oldest=max(
                (c.oldest for c in snapshot.live if _waits_at(c, name) and c.oldest is not None), default=None
            ),
            lost=tuple(
                sorted(
                    ((c.reason or "", c.turns) for c in counts if _lost_before(c) == name),
                    key=lambda lost: -lost[1],
                )
            ),
        )
        for name in STEPS
    )


def _reached(name: str, counts: tuple[Count, ...], snapshot: Snapshot) -> int | None:
    recorded = sum(count.turns for count in counts)
    if name == "seen":
        return None if snapshot.undrained is None else recorded + snapshot.set_aside + snapshot.undrained
    if name == "published":
        return snapshot.published
    return sum(count.turns for count in counts if STEPS.index(name) <= _furthest(count))


def _furthest(count: Count) -> int:
    """The index in STEPS of the last step that these turns reached."""
    lost = _lost_before(count)
    return STEPS.index(lost) - 1 if lost else STEPS.index(_LAST_STEP[count.stage])


def _lost_before(count: Count) -> str | None:
    return LOST_BEFORE.get(count.reason or "", "next state") if count.stage == Stage.DROPPED else None


def _waits_at(count: Count, name: str) -> bool:
    return count.stage not in (Stage.DROPPED, Stage.TRAINED) and _LAST_STEP[count.stage] == name
