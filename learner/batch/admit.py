"""Which of the turns that can be trained come into this batch: staleness, shares, tokens, zeros. Pure.

A turn over a share is *held*: it stays scored and waits for a later batch. A batch never depends on more
than the order of its turns.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from dukou.settings.learning import BatchSettings
from dukou.store.batches import Candidate
from learner.batch.rules import Limits, staleness, why_dropped

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
