"""The scorer: claims turns whose next state is known, gets votes, writes scores.

The score and the turn's move are written together, under the claim's token. A fault leaves the turn
scorable. Only a judge that cannot tell, or MAX_ATTEMPTS tries without a quorum, drop it, and neither where
feedback says what the judge could not.
"""

import logging
import os
import socket
import time
from collections.abc import Callable
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
from learner.llm.access import misconfigured, of_judge
from learner.score.evidence import Evidence
from learner.score.judge import Judge, RulesJudge
from learner.score.judge_llm import LLMJudge
from learner.score.next_state import Case
from learner.score.parallel import in_parallel
from learner.score.polling import VoteCollector
from learner.score.rules import RULES
from learner.score.suspicion import suspects_injection
from learner.score.tally import ScoreCounter, ScoreReport
from learner.score.vote import blames_turn, decide
from learner.teach.lessons import Lessons

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
