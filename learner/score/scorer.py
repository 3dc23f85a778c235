"""The scorer: claims turns whose next state is known, gets votes, writes scores.

The score and the turn's move are written together, under the claim's token. A fault leaves the turn
scorable. Only a judge that cannot tell, or MAX_ATTEMPTS tries without a quorum, drop it, and neither where
feedback says what the judge could not.

Collects the votes on a claimed turn: those of earlier tries are kept, missing ones asked for, all written.

No transaction is open while a judge thinks. A vote is written as soon as it is there, so that a crash pays
for no vote twice but those in flight.

What a scoring run came to, counted by several threads.
"""

import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from math import ceil
from urllib.parse import urlsplit

from sqlalchemy import Connection, Engine

from dukou.settings.model import Config
from dukou.store import calls, scores, states
from dukou.store.scores import ABSTAINED, Score, Vote
from dukou.store.states import Claim, ClaimLostError, Stage
from learner.batch.rules import unwanted
from learner.hints.lessons import Lessons
from learner.llm.client import in_parallel
from learner.llm.limits import misconfigured, of_judge
from learner.score.case import suspects_injection
from learner.score.evidence import Evidence
from learner.score.judge import Ballot, Judge, RulesJudge
from learner.score.llm_judge import LLMJudge
from learner.score.next_state import Case, case_of
from learner.score.rules_judge import RULES
from learner.score.verdict import blames_turn, decide


class VoteCollector:
    """The votes of one judge, of as many turns at once as its caller has threads."""

    def __init__(self, engine: Engine, judge: Judge) -> None:
        self._engine = engine
        self._judge = judge

    def case(self, claim: Claim) -> Case | None:
        """What is to be judged; None where nothing followed, or a turn is gone."""
        if claim.next_turn_id is None:
            return None
        with self._engine.connect() as connection:
            judged = scores.read_judged(connection, claim.turn_id, claim.next_turn_id)
        case = None if judged is None else case_of(judged)
        return case if case is not None and case.next_state else None

    def votes(self, claim: Claim, case: Case) -> list[Vote]:
        """All votes about a case, those of earlier tries included.

        Raises:
            ClaimLostError: another scorer has the turn by now; what was paid is in the ledger.
        """
        judge = self._judge
        with self._engine.connect() as connection:
            kept = scores.came_back(connection, claim.turn_id, judge.name, judge.rubric_of(case))
        kept = [vote for vote in kept if vote.n < judge.votes]
        missing = sorted(set(range(judge.votes)) - {vote.n for vote in kept})
        ballots = in_parallel([partial(self._vote, claim, case, n) for n in missing])
        return kept + [ballot.vote for ballot in ballots if ballot.vote is not None]

    def _vote(self, claim: Claim, case: Case, n: int) -> Ballot:
        ballot = self._judge.vote(case, n)
        with self._engine.begin() as connection:
            # The calls were paid, also where another scorer holds the turn by now.
            ids = [calls.record(connection, call, claim.turn_id) for call in ballot.calls]
            held = ballot.vote is None or states.holds(connection, claim)
            if ballot.vote is not None and held:
                by = (self._judge.name, self._judge.rubric_of(case))
                scores.record_vote(connection, claim.turn_id, *by, ballot.vote, ids[-1] if ids else None)
            calls.add_up(connection, ballot.calls)
        if not held:
            raise ClaimLostError(str(claim.turn_id))
        return ballot


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


__all__ = ["ScoreReport", "Scorer", "choose_judge"]

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 5  # tries that end without a quorum although the judge answers
RETRY_SECONDS = (15.0, 3_600.0)  # first and longest wait until the next try; it doubles
LEASE_MARGIN_SECONDS = 30.0
ROUND_SECONDS = 60.0  # after which a run ends, so that feedback and status have their turn
_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})
#: Turns begun per turn that the judge has room for, so that the last vote of one leaves no room empty.
TURNS_AHEAD = 1.5


class Scorer:
    """Scores turns with one judge; several may run beside each other, in one process or many."""

    def __init__(
        self,
        engine: Engine,
        config: Config,
        judge: Judge | None = None,
        *,
        stopping: Callable[[], bool] = lambda: False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        if judge is None:
            judge, sentence = choose_judge(config)
            log.warning(sentence) if "WARNING" in sentence or "PAUSED" in sentence else log.info(sentence)
        self._engine = engine
        self._judge = judge
        self._train_truncated = config.batch.truncated == "train"
        self._collector = VoteCollector(engine, judge)
        self._lessons = Lessons(engine, config)
        self._evidence = Evidence(engine, self._lessons, now)
        self._stopping = stopping
        self._now = now
        self._owner = f"{socket.gethostname()}:{os.getpid()}"
        self._workers = ceil(TURNS_AHEAD * judge.concurrency / judge.votes)
        rounds = ceil(self._workers * judge.votes / judge.concurrency)
        self._lease_seconds = LEASE_MARGIN_SECONDS + judge.seconds * rounds

    def run_once(self, limit: int) -> ScoreReport:
        """Applies feedback, then judges at most `limit` turns; returns when there are no more, when the
        judge cannot be asked, or after ROUND_SECONDS.

        Raises:
            sqlalchemy.exc.OperationalError: the database is not there; what was claimed is retaken later.
        """
        by_evidence = self._evidence.apply()
        tally = ScoreCounter(limit)
        waiting = self._judge.waiting()
        if not waiting:
            until = self._now() + ROUND_SECONDS
            in_parallel([partial(self._work, tally, until)] * min(self._workers, limit))
        return tally.report(waiting or self._judge.waiting(), by_evidence)

    def _work(self, tally: ScoreCounter, until: float) -> None:
        while not self._stopping() and self._now() < until and self._judge.waiting() is None:
            if not tally.may_claim():
                return
            with self._engine.begin() as connection:
                claim = self._claim(connection, tally)
            if claim is None:
                return
            tally.claimed()
            try:
                self._score(claim, tally)
            except ClaimLostError:
                log.warning("turn %s was taken by another scorer while it was judged here", claim.turn_id)

    def _claim(self, connection: Connection, tally: ScoreCounter) -> Claim | None:
        """The next turn; None where there is none, or no money left for it."""
        reached = calls.over(connection, self._judge.caps, datetime.now(UTC))
        if reached is not None:
            tally.stopped(reached)
            return None
        return states.claim_scorable(connection, self._owner, self._lease_seconds)

    def _score(self, claim: Claim, tally: ScoreCounter) -> None:
        reason = unwanted(claim.sampling_class, train_truncated=self._train_truncated)
        case = self._collector.case(claim) if reason is None else None
        if case is None:
            with self._engine.begin() as connection:
                states.finish(connection, claim, Stage.DROPPED, reason or "no_next_state")
            tally.ended(Stage.DROPPED)
            return
        self._conclude(claim, case, self._collector.votes(claim, case), tally)

    def _conclude(self, claim: Claim, case: Case, cast: list[Vote], tally: ScoreCounter) -> None:
        suspected = suspects_injection(case)
        quorum = self._judge.votes if suspected else self._judge.quorum
        score = decide(cast, quorum, unanimous=suspected)
        # A channel that is closed by now failed all turns alike: no turn loses an attempt by it.
        counted = self._judge.waiting() is None or any(map(blames_turn, cast))
        believed = cast if score.value is not None or not suspected else []
        lesson = self._lessons.of_votes(claim.turn_id, believed, quorum)
        with self._engine.begin() as connection:
            told = score.value is None and scores.has_feedback(connection, claim.turn_id)
            end = Stage.SCORED if told else outcome(score, claim.attempts + int(counted))
            if end is None:
                seconds = retry_seconds(claim.attempts) if counted else 0.0
                states.put_back(connection, claim, score.reason, seconds, counted=counted)
            else:
                states.finish(connection, claim, end, score.reason if end is Stage.DROPPED else None)
            if cast:
                by = (self._judge.name, self._judge.rubric_of(case))
                scores.record(connection, claim.turn_id, *by, score, injection_suspected=suspected)
            lesson.write(connection)
        if end is None:
            faults = sorted({vote.status for vote in cast if not vote.came_back})
            tally.put_back(", ".join(faults) or "the judge could not be asked")
        else:
            tally.ended(end)


def outcome(score: Score, attempts: int) -> Stage | None:
    """Where a turn with this score goes; None: it stays scorable. `attempts` counts the one just made."""
    if score.value is not None:
        return Stage.SCORED
    if score.reason == ABSTAINED or attempts >= MAX_ATTEMPTS:
        return Stage.DROPPED
    return None


def retry_seconds(attempts: int) -> float:
    """Seconds until a turn is judged again after `attempts` earlier tries."""
    first, longest = RETRY_SECONDS
    return min(longest, first * 2.0**attempts)


def choose_judge(config: Config) -> tuple[Judge, str]:
    """The judge that the configuration asks for, and the sentence that says which one and why."""
    judge = config.judge
    unusable = misconfigured(of_judge(judge))
    if judge.kind == "rules":
        return RulesJudge(), f"judge: {RULES} (judge.kind = rules), offline, no key needed"
    if judge.kind == "auto" and unusable:
        return RulesJudge(), f"judge: {RULES}, offline, because {unusable}"
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
    own = {_host_and_port(url) for url in config.engine.urls}
    own.add(_host_and_port(f"http://{config.gateway.host}:{config.gateway.port}"))
    return _host_and_port(config.judge.api_base) in own


def _host_and_port(url: str) -> tuple[str | None, int | None]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return None, None
    return ("localhost" if host in _THIS_MACHINE else host), port
