"""The scorer: claims turns whose next state is known, gets votes, writes scores.

No transaction is open while a judge thinks. A vote is written as soon as it is there, so that a crash never
pays for it twice; the score and the turn's move are written together, under the claim's token. A fault leaves
the turn scorable. Only a judge that cannot tell, or MAX_ATTEMPTS tries without a quorum, drop it.
"""

import logging
import os
import socket
from functools import partial
from math import ceil

from sqlalchemy import Engine

from learner.score.judge import Ballot, Judge, choose_judge
from learner.score.next_state import Case, case_of
from learner.score.parallel import in_parallel
from learner.score.render import suspects_injection
from learner.score.tally import ScoreReport, Tally
from learner.score.vote import decide
from store import calls, scores, states, votes
from store.config_model import Config
from store.scores import Score
from store.stages import Stage
from store.states import Claim, LeaseLostError
from store.votes import ABSTAINED, Vote

__all__ = ["ScoreReport", "Scorer", "choose_judge"]

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 5  # tries that end without a quorum although the judge answers
RETRY_SECONDS = (15.0, 3_600.0)  # first and longest wait until the next try; it doubles
LEASE_MARGIN_SECONDS = 30.0


class Scorer:
    """Scores turns with one judge; several may run beside each other, in one process or many."""

    def __init__(self, engine: Engine, config: Config, judge: Judge | None = None) -> None:
        if judge is None:
            judge, sentence = choose_judge(config)
            log.warning(sentence) if "WARNING" in sentence or "PAUSED" in sentence else log.info(sentence)
        self._engine = engine
        self._judge = judge
        self._as = (judge.name, judge.rubric)
        self._owner = f"{socket.gethostname()}:{os.getpid()}"
        self._workers = ceil(judge.concurrency / judge.votes)
        rounds = ceil(self._workers * judge.votes / judge.concurrency)
        self._lease_seconds = LEASE_MARGIN_SECONDS + judge.seconds * rounds

    def run_once(self, limit: int) -> ScoreReport:
        """Scores at most `limit` turns; returns when there are no more, or the judge cannot be asked.

        Raises:
            sqlalchemy.exc.OperationalError: the database is not there; what was claimed is retaken later.
        """
        waiting = self._judge.waiting()
        if waiting:
            return ScoreReport(waiting_because=waiting)
        tally = Tally(limit)
        in_parallel([partial(self._work, tally)] * min(self._workers, limit))
        return tally.report(self._judge.waiting())

    def _work(self, tally: Tally) -> None:
        while self._judge.waiting() is None and tally.may_claim():
            with self._engine.begin() as connection:
                claim = states.claim_scorable(connection, self._owner, self._lease_seconds)
            if claim is None:
                return
            tally.claimed()
            try:
                self._score(claim, tally)
            except LeaseLostError:
                log.warning("turn %s was taken by another scorer while it was judged here", claim.turn_id)

    def _score(self, claim: Claim, tally: Tally) -> None:
        case, kept = self._read(claim)
        if case is None or not case.next_state:
            with self._engine.begin() as connection:
                states.finish(connection, claim, Stage.DROPPED, "no_next_state")
            tally.ended(Stage.DROPPED)
            return
        missing = sorted(set(range(self._judge.votes)) - {vote.n for vote in kept})
        ballots = in_parallel([partial(self._vote, claim, case, n) for n in missing])
        cast = kept + [ballot.vote for ballot in ballots if ballot.vote is not None]
        self._conclude(claim, case, cast, tally)

    def _read(self, claim: Claim) -> tuple[Case | None, list[Vote]]:
        if claim.next_turn_id is None:
            return None, []
        with self._engine.connect() as connection:
            judged = scores.read_judged(connection, claim.turn_id, claim.next_turn_id)
            kept = votes.came_back(connection, claim.turn_id, self._judge.name, self._judge.rubric)
        wanted = [vote for vote in kept if vote.n < self._judge.votes]
        return (None if judged is None else case_of(judged)), wanted

    def _vote(self, claim: Claim, case: Case, n: int) -> Ballot:
        ballot = self._judge.vote(case, n)
        with self._engine.begin() as connection:  # paid is paid, whoever holds the turn by now
            ids = [calls.record(connection, call, claim.turn_id) for call in ballot.calls]
        if ballot.vote is not None:
            with self._engine.begin() as connection:
                states.hold(connection, claim)
                votes.record(connection, claim.turn_id, *self._as, ballot.vote, ids[-1] if ids else None)
        return ballot

    def _conclude(self, claim: Claim, case: Case, cast: list[Vote], tally: Tally) -> None:
        score = decide(cast, self._judge.quorum)
        # A channel that is closed by now failed all turns alike: that uses up nobody's attempts.
        counted = self._judge.waiting() is None
        end = outcome(score, claim.attempts + int(counted))
        with self._engine.begin() as connection:
            if end is None:
                seconds = retry_seconds(claim.attempts) if counted else 0.0
                states.put_back(connection, claim, score.reason, seconds, counted=counted)
            else:
                states.finish(connection, claim, end, score.reason if end is Stage.DROPPED else None)
            if cast:
                suspected = suspects_injection(case)
                scores.record(connection, claim.turn_id, *self._as, score, injection_suspected=suspected)
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
