"""Judges: what they have in common, and which one judges here."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol
from urllib.parse import urlsplit

from learner.score.access import misconfigured, of_judge
from learner.score.next_state import Case
from learner.score.rules import RULES, verdict
from store.calls import Call
from store.config_model import Config
from store.spending import Caps
from store.votes import ABSTAINED, OK, Vote

_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})


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


def choose_judge(config: Config) -> tuple[Judge, str]:
    """The judge that the configuration asks for, and the sentence that says which one and why."""
    judge = config.judge
    unusable = misconfigured(of_judge(judge))
    if judge.kind == "rules":
        return RulesJudge(), f"judge: {RULES} (judge.kind = rules), offline, no key needed"
    if judge.kind == "auto" and unusable:
        return RulesJudge(), f"judge: {RULES}, offline, because {unusable}"
    from learner.score.judge_llm import LLMJudge

    own = is_own_endpoint(config)
    chosen = LLMJudge(judge, clock=lambda: datetime.now(UTC), as_side=own)
    sentence = f"judge: {chosen.name} at {judge.api_base}, {judge.votes} votes, quorum {chosen.quorum}"
    if unusable:
        sentence += f"; PAUSED: {unusable}"
    if own:
        sentence += (
            "; WARNING: judge.api_base is the policy's own endpoint: it judges itself and takes the users' "
            "engine. Its calls are sent as side turns, which are not trained"
        )
    return chosen, sentence


def is_own_endpoint(config: Config) -> bool:
    """Whether the judge's api_base is this gateway or one of its engines (by host and port)."""
    own = {_place(url) for url in config.engine.urls}
    own.add(_place(f"http://{config.gateway.host}:{config.gateway.port}"))
    return _place(config.judge.api_base) in own


def _place(url: str) -> tuple[str | None, int | None]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return None, None
    return ("localhost" if host in _THIS_MACHINE else host), port
