"""Judges: what they have in common, and the one that judges by rules."""

from dataclasses import dataclass
from typing import Protocol

from dukou.store.calls import Call, Caps
from dukou.store.scores import ABSTAINED, OK, Vote
from learner.score.next_state import Case
from learner.score.rules import RULES, verdict


@dataclass(frozen=True, slots=True)
class Ballot:
    """One vote and what it took. `vote` is None where the judge could not be asked at all."""

    vote: Vote | None
    calls: tuple[Call, ...] = ()


class Judge(Protocol):
    name: str  # "rules@1", "llm:openai/gpt-5-mini"
    votes: int  # how often a turn is judged
    quorum: int  # how many votes must come back
    concurrency: int  # votes at once that make sense
    seconds: float  # longest time that one vote takes
    caps: Caps  # on what it may cost

    def vote(self, case: Case, n: int) -> Ballot:
        """The n-th vote about a case; from any thread."""
        ...

    def rubric_of(self, case: Case) -> str:
        """The rubric that a case is judged by."""
        ...

    def waiting(self) -> str | None:
        """Why there is no use in asking now, in a sentence; None where there is."""
        ...


class RulesJudge:
    """The offline judge: rules on the next state, no key, no calls."""

    name = RULES
    votes = quorum = concurrency = 1
    seconds = 1.0
    caps = Caps()

    def rubric_of(self, case: Case) -> str:
        return RULES

    def vote(self, case: Case, n: int) -> Ballot:
        found = verdict(case)
        status = ABSTAINED if found.value is None else OK
        return Ballot(Vote(n, status, found.value, raw=found.reason))

    def waiting(self) -> str | None:
        return None
