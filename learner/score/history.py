"""Judging history again: `learner score --since … --until … --rubric …`. Nothing is served again.

Every turn of the window that something followed gets votes and a score of this judge and rubric, beside those
that it has. Votes that came back before are kept, so that a run that was stopped goes on where it was. A turn
that no judge could score so far is scored now; whatever else became of a turn stays.
"""

import logging
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from threading import Lock
from uuid import UUID

from sqlalchemy import Engine

from dukou.store import calls, scores, sessions, states
from dukou.store.sessions import Window
from dukou.store.states import ClaimLostError, Stage
from learner.llm.client import in_parallel
from learner.score.case import suspects_injection
from learner.score.judge import Judge
from learner.score.scorer import LEASE_MARGIN_SECONDS, ScoreCounter, ScoreReport, VoteCollector
from learner.score.verdict import decide

log = logging.getLogger(__name__)

PAGE = 200


class History:
    """One run over a window; several may run at once, and beside ordinary scorers."""

    def __init__(
        self, engine: Engine, judge: Judge, window: Window, stopping: Callable[[], bool] = lambda: False
    ) -> None:
        self._engine, self._judge, self._window, self._stopping = engine, judge, window, stopping
        self._collector = VoteCollector(engine, judge)
        self._owner = f"{socket.gethostname()}:{os.getpid()}:history"
        self._turns = self._pages()
        self._lock = Lock()

    def run(self) -> ScoreReport:
        """Judges the window; `waiting_because` says why it ended early, if it did."""
        tally = ScoreCounter()
        workers = max(1, self._judge.concurrency // self._judge.votes)
        in_parallel([partial(self._work, tally)] * workers)
        return tally.report(self._judge.waiting(), 0)

    def _work(self, tally: ScoreCounter) -> None:
        while not self._stopping() and self._judge.waiting() is None:
            with self._engine.connect() as connection:
                reached = calls.over(connection, self._judge.caps, datetime.now(UTC))
            if reached is not None:
                tally.stopped(reached)
                return
            with self._lock:
                found = next(self._turns, None)
            if found is None:
                return
            try:
                self._score(*found, tally)
            except ClaimLostError:
                log.warning("turn %s was taken by another scorer while it was judged here", found[0])

    def _score(self, turn_id: UUID, next_turn_id: UUID, tally: ScoreCounter) -> None:
        seconds = LEASE_MARGIN_SECONDS + self._judge.seconds
        with self._engine.begin() as connection:
            claim = states.claim_again(connection, turn_id, self._owner, seconds)
        if claim is None:  # it waits for its first judgement, or somebody else has it
            return
        claim = replace(claim, next_turn_id=next_turn_id)
        tally.claimed()
        case = self._collector.case(claim)
        cast = self._collector.votes(claim, case) if case is not None else []
        suspected = case is not None and suspects_injection(case)
        quorum = self._judge.votes if suspected else self._judge.quorum
        score = decide(cast, quorum, unanimous=suspected)
        with self._engine.begin() as connection:
            states.release(connection, claim)
            if case is not None and cast:
                by = (self._judge.name, self._judge.rubric_of(case))
                scores.record(connection, turn_id, *by, score, injection_suspected=suspected)
            if score.value is not None:
                states.rescue(connection, [turn_id])
        if score.value is not None:
            tally.ended(Stage.SCORED)
        else:
            tally.put_back(", ".join(sorted({v.status for v in cast if not v.came_back})) or score.reason)

    def _pages(self) -> Iterator[tuple[UUID, UUID]]:
        after: UUID | None = None
        while True:
            with self._engine.connect() as connection:
                page = sessions.judgeable(connection, self._window, after, PAGE)
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1][0]
