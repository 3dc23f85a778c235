"""Which scored turns can be trained at all: one rule per reason, as data. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dukou.store.batches import Candidate


@dataclass(frozen=True, slots=True)
class Limits:
    """What a turn is held against. `depth` is each ancestor's distance from the live version (itself 0)."""

    depth: Mapping[int, int]
    max_staleness: int
    max_tokens: int
    vocabulary: int  # ids of the model: 0 … vocabulary − 1
    needs_hint: bool = False
    train_cut_short: bool = True
    train_zeros: bool = True
    train_truncated: bool = False


Rule = Callable[[Candidate, Limits], bool]


def unwanted(sampling_class: str | None, *, train_truncated: bool) -> str | None:
    """The reason why an answer that was sampled like this is not trained, by choice; None where it is.

    It is known before the turn is scored, so no judge need be paid for such a turn.
    """
    return "sampling_truncated" if sampling_class == "truncated" and not train_truncated else None


#: Reason (dukou/store/states.py) and when it applies; the first that does is the turn's reason.
RULES: tuple[tuple[str, Rule], ...] = (
    ("no_quorum", lambda turn, _: turn.reward is None),
    ("version_unknown", lambda turn, _: turn.version_min is None or turn.version_max is None),
    ("empty_answer", lambda turn, _: turn.answer_tokens == 0),
    ("no_ids", lambda turn, _: turn.tokens == turn.answer_tokens),
    (
        "not_an_ancestor",
        lambda turn, limits: turn.version_min not in limits.depth or turn.version_max not in limits.depth,
    ),
    ("too_long", lambda turn, limits: turn.tokens > limits.max_tokens),
    (
        "out_of_vocabulary",
        lambda turn, limits: (turn.lowest_id or 0) < 0 or (turn.highest_id or 0) >= limits.vocabulary,
    ),
    ("sampling_unknown", lambda turn, _: turn.temperature is None),
    (
        "sampling_truncated",
        lambda turn, limits: bool(unwanted(turn.sampling_class, train_truncated=limits.train_truncated)),
    ),
    ("cut_short", lambda turn, limits: turn.cut_short and not limits.train_cut_short),
    ("zero_score", lambda turn, limits: turn.reward == 0 and not limits.train_zeros),
    ("no_hint", lambda turn, limits: limits.needs_hint and usable_hint(turn, limits) is None),
)


def usable_hint(turn: Candidate, limits: Limits) -> int | None:
    """The hint that a teacher can score the answer under: one that leaves room for the answer."""
    return turn.hint_id if turn.hint_tokens + turn.answer_tokens <= limits.max_tokens else None


def staleness(turn: Candidate, limits: Limits) -> int:
    """Versions from the live one back to the *oldest* version that had a part in the answer; never negative.

    Raises KeyError where that version is no ancestor of the live one (a rule has dropped those).
    """
    if turn.version_min is None:
        raise KeyError(f"turn {turn.turn_id} has no version")
    return limits.depth[turn.version_min]


def why_dropped(turn: Candidate, limits: Limits) -> str | None:
    """The reason why this turn cannot be trained in any batch, or None. Staleness: see `admit.BatchDraft`."""
    return next((reason for reason, applies in RULES if applies(turn, limits)), None)
