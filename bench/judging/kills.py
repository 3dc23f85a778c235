"""Kills a scorer with SIGKILL, again and again, and counts what it cost: `python -m bench.judging.kills 50`.

A nursery process loads everything once and forks the scorers, so that a kill meets one at work and not one
that starts. Leases of the dead are ended at once, which saves the wait for them and makes nothing easier.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sqlalchemy import func, select, update

from bench.scoring import VOTES, Judge, fresh, unscored
from dukou.store import embedded
from dukou.store.tables import calls, turn_states, votes

IN_FLIGHT = 6
LATENCY = 0.3
TURNS = 160
LONGEST_LIFE = 1.5  # seconds


class Nursery:
    """Forks scorers on demand."""

    def __init__(self, where: str, judge: Judge) -> None:
        command = [sys.executable, "-m", "bench.judging.kills", "nursery", where, judge.url]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )

    def scorer(self) -> int:
        """The pid of a new scorer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print("go", file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    def close(self) -> None:
        with self.process:  # closes its pipes, and waits
            self.process.kill()


def nursery(where: str, judge_url: str) -> None:
    """Reads a line, forks a scorer, says its pid; reaps the dead."""
    from learner.llm.client import quiet_litellm

    quiet_litellm()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _score(where, judge_url)
            os._exit(0)
        print(pid, flush=True)


def _score(where: str, judge_url: str) -> None:
    from dukou.settings.model import Config
    from dukou.store import database
    from learner.score.scorer import Scorer

    judge = {"kind": "llm", "api_base": judge_url, "api_key": "none", "model": "openai/fake"}
    numbers = {"votes": VOTES, "concurrency": IN_FLIGHT}
    scorer = Scorer(database.engine_at(where), Config.model_validate({"judge": {**judge, **numbers}}))
    while True:
        scorer.run_once(10_000)
        time.sleep(0.05)


def measure(times: int) -> dict[str, int]:
    """Scores TURNS turns through so many kills, on a Postgres of its own."""
    state = Path(tempfile.mkdtemp(prefix="dukou-bench-"))
    try:
        return _measure(times, state)
    finally:
        embedded.stop(state)
        shutil.rmtree(state, ignore_errors=True)


def _measure(times: int, state: Path) -> dict[str, int]:
    dice = random.Random(3)
    at_work = 0
    with Judge(LATENCY, 0.0) as judge, fresh(state, 0, TURNS) as (where, engine):
        breed = Nursery(where, judge)
        try:
            for _ in range(times):
                pid = breed.scorer()
                time.sleep(dice.uniform(0.2, LONGEST_LIFE))
                at_work += unscored(engine) > 0
                os.kill(pid, signal.SIGKILL)
                with engine.begin() as connection:
                    connection.execute(update(turn_states).values(lease_until=None, lease_owner=None))
            breed.scorer()
            until = time.monotonic() + 120
            while unscored(engine) and time.monotonic() < until:
                time.sleep(0.2)
        finally:
            breed.close()
        each = select(func.count()).where(votes.c.status == "ok").group_by(votes.c.turn_id)
        with engine.connect() as connection:
            exact = sum(number == VOTES for number in connection.scalars(each))
            billed = connection.scalar(select(func.count()).select_from(calls)) or 0
        asked = judge.counts()["requests"]
    return {
        "kills": times,
        "of_scorers_at_work": at_work,
        "turns": TURNS,
        "turns_with_exactly_m_votes": exact,
        "paid_beyond_needed": asked - TURNS * VOTES,
        "paid_beyond_needed_at_most": times * IN_FLIGHT,
        "not_in_the_ledger": asked - billed,
    }


def main() -> None:
    if sys.argv[1:2] == ["nursery"]:
        nursery(*sys.argv[2:4])
        return
    print(json.dumps(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 50)))


if __name__ == "__main__":
    main()
