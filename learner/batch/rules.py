"""Which scored turns can be trained at all: one rule per reason, as data. Pure.

Which of the turns that can be trained come into this batch: staleness, shares, tokens, zeros. Pure.

A turn over a share is *held*: it stays scored and waits for a later batch. A batch never depends on more
than the order of its turns.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from dukou.settings.learning import BatchSettings
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


#: What a share can be of, each with its owner: a user's or a session's name means nothing in another tenant.
Kind = Literal["tenant", "user", "session", "task"]
Owner = tuple[Kind, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Admission:
    """What becomes of a turn; `reason` only where it is dropped."""

    kind: Literal["taken", "held", "dropped"]
    reason: str | None = None


TAKEN, HELD = Admission("taken"), Admission("held")


@dataclass(slots=True)
class BatchDraft:
    """A batch while it is filled."""

    settings: BatchSettings
    limits: Limits
    taken: list[Candidate] = field(default_factory=list)
    tokens: int = 0
    late: int = 0
    crowded: bool = False  # the next turn would be over batch.max_batch_tokens
    shares: Counter[Owner] = field(default_factory=Counter)

    @property
    def full(self) -> bool:
        return self.crowded or len(self.taken) >= self.settings.rollout_batch_size

    def offer(self, turn: Candidate) -> Admission:
        """Decides about one turn, and keeps it where it is taken."""
        reason = why_dropped(turn, self.limits) or self._zero(turn)
        if reason is not None:
            return Admission("dropped", reason)
        if self.full or any(self.shares[owner] >= self.most(owner[0]) for owner in owners(turn)):
            return HELD
        late = staleness(turn, self.limits) > self.limits.max_staleness
        if late and self.late >= int(self.settings.late_share * self.settings.rollout_batch_size):
            return Admission("dropped", "stale")
        if self._crowds(turn):
            self.crowded = True
            return HELD
        self._take(turn, late=late)
        return TAKEN

    def most(self, kind: Kind) -> int:
        """How many turns of one owner a batch may hold; at least one, or its turns could never be trained."""
        share: float = getattr(self.settings, f"max_share_{kind}")
        return max(1, int(share * self.settings.rollout_batch_size))

    def saturated(self, kind: Kind) -> list[tuple[str, ...]]:
        """Those who have their share: more of their turns need not be looked at."""
        return [name for (k, name), n in self.shares.items() if k == kind and n >= self.most(kind)]

    def _zero(self, turn: Candidate) -> str | None:
        """OpenClaw-RL's at-least-one: a 0 counts only while nothing else of its session does."""
        if self.settings.zeros != "at_least_one" or turn.reward != 0:
            return None
        counted = turn.session_trained or self.shares["session", (turn.tenant, turn.session_id)] > 0
        return "zero_score" if counted else None

    def _crowds(self, turn: Candidate) -> bool:
        budget = self.settings.max_batch_tokens
        return budget > 0 and bool(self.taken) and self.tokens + turn.tokens > budget

    def _take(self, turn: Candidate, *, late: bool) -> None:
        self.taken.append(turn)
        self.tokens += turn.tokens
        self.late += late
        self.shares.update(owners(turn))


def owners(turn: Candidate) -> list[Owner]:
    """Whose shares a turn counts for."""
    return [
        ("tenant", (turn.tenant,)),
        ("user", (turn.tenant, turn.user)),
        ("session", (turn.tenant, turn.session_id)),
        ("task", (turn.task,)),
    ]
