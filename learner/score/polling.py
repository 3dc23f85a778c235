"""Collects the votes on a claimed turn: those of earlier tries are kept, missing ones asked for, all written.

No transaction is open while a judge thinks. A vote is written as soon as it is there, so that a crash pays
for no vote twice but those in flight.
"""

from functools import partial

from sqlalchemy import Engine

from dukou.store import calls, scores, states
from dukou.store.scores import Vote
from dukou.store.states import Claim, ClaimLostError
from learner.score.judge import Ballot, Judge
from learner.score.next_state import Case, case_of
from learner.score.parallel import in_parallel


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
