"""What a scoring run came to, counted by several threads."""

import threading
from collections import Counter
from dataclasses import dataclass

from dukou.store.states import Stage


@dataclass(frozen=True, slots=True)
class ScoreReport:
    claimed: int = 0
    scored: int = 0
    dropped: int = 0
    by_evidence: int = 0  # turns that feedback or lineage scored
    waiting_because: str | None = None  # what keeps turns from being scored, in a sentence


class ScoreCounter:
    """Hands out at most `limit` claims (None: any number) and counts how they ended."""

    def __init__(self, limit: int | None = None) -> None:
        self._lock = threading.Lock()
        self._left = limit
        self._claimed = 0
        self._ends: Counter[Stage] = Counter()
        self._faults: Counter[str] = Counter()
        self._because: str | None = None

    def may_claim(self) -> bool:
        with self._lock:
            if self._left is None:
                return True
            self._left -= 1
            return self._left >= 0

    def claimed(self) -> None:
        with self._lock:
            self._claimed += 1

    def ended(self, end: Stage) -> None:
        with self._lock:
            self._ends[end] += 1

    def put_back(self, fault: str) -> None:
        """A turn stays scorable; `fault` says why, in a few words."""
        with self._lock:
            self._faults[fault] += 1

    def stopped(self, because: str) -> None:
        """Nothing more is claimed, for this reason."""
        with self._lock:
            self._because = because

    def report(self, waiting: str | None, by_evidence: int) -> ScoreReport:
        """`waiting` is the judge's own sentence, if it cannot be asked."""
        ends, because = self._ends, waiting or self._because or self._complaint()
        return ScoreReport(self._claimed, ends[Stage.SCORED], ends[Stage.DROPPED], by_evidence, because)

    def _complaint(self) -> str | None:
        if not self._faults:
            return None
        total = self._faults.total()
        reasons = "; ".join(f"{fault} ({count})" for fault, count in sorted(self._faults.items()))
        return f"{total} turn{'s' * (total != 1)} got too few votes and will be judged again: {reasons}"
