"""Turns scored per second by `learner score` against a fake judge of realistic latency, and what faults cost.

Each case has a fresh database in an embedded Postgres and real scorer processes. The rate is that of the
verdicts between the first and the last fifth: the middle, without start and tail. `ideal` is calls in flight
divided by the latency that the judge had in that case.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, func, select, text

from dukou.store import database, embedded
from dukou.store.states import Stage
from dukou.store.tables import calls, turn_states, votes
from tests.fakes.turns import add_turn

VOTES = 3
EDGE = 0.2
PATIENCE = 240.0  # seconds that a case may take


@dataclass(frozen=True, slots=True)
class Case:
    scorers: int
    in_flight: int  # of each scorer
    latency: float
    turns: int
    faults: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    votes_per_second: float
    ideal: float
    latency: float
    most_at_once: int
    cpu_ms_per_vote: float
    lost: int
    double_paid: int

    @property
    def efficiency(self) -> float:
        return self.votes_per_second / self.ideal


class Judge:
    """The fake judge's process."""

    def __init__(self, latency: float, faults: float) -> None:
        command = [sys.executable, "-m", "bench.judging.fake", str(latency), str(faults)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"

    def counts(self) -> dict[str, Any]:
        with urllib.request.urlopen(self.url + "/counts") as reply:
            found: dict[str, Any] = json.load(reply)
        return found

    def __enter__(self) -> "Judge":
        return self

    def __exit__(self, *_: object) -> None:
        with self.process:  # closes its pipe, and waits
            self.process.kill()


@contextlib.contextmanager
def fresh(state: Path, number: int, turns: int) -> Iterator[tuple[str, Engine]]:
    """A migrated database with so many turns to score."""
    admin = database.engine_at(embedded.ensure_running(state), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"create database bench_{number}"))
    where = admin.url.set(database=f"bench_{number}").render_as_string(hide_password=False)
    admin.dispose()
    database.upgrade(where)
    engine = database.engine_at(where)
    history = [{"role": "user", "content": "What is a list?"}, {"role": "assistant", "content": "hi"}]
    then = [*history, {"role": "user", "content": "thanks, that helps"}]
    with engine.begin() as connection:
        for n in range(turns):
            add_turn(connection, 2 * n, Stage.SCORABLE, next_number=2 * n + 1, said="What is a list?")
            add_turn(connection, 2 * n + 1, Stage.DROPPED, "empty_answer", messages=then, parent_messages=2)
    yield where, engine
    engine.dispose()


def scorer(folder: Path, where: str, judge: Judge, in_flight: int) -> subprocess.Popen[bytes]:
    """A `learner score` process."""
    settings = {
        "DUKOU_STATE_DIR": str(folder / "state"),
        "DUKOU_DATABASE_URL": where,
        "DUKOU_JUDGE_KIND": "llm",
        "DUKOU_JUDGE_API_BASE": judge.url,
        "DUKOU_JUDGE_API_KEY": "none",
        "DUKOU_JUDGE_MODEL": "openai/fake",
        "DUKOU_JUDGE_VOTES": str(VOTES),
        "DUKOU_JUDGE_CONCURRENCY": str(in_flight),
    }
    config = folder / "config.toml"
    config.touch()
    command = [sys.executable, "-m", "learner", "score", "--config", str(config)]
    log = (folder / "scorer.log").open("ab")
    return subprocess.Popen(
        command, env=os.environ | settings, stdout=log, stderr=log, start_new_session=True
    )


def run(case: Case, state: Path, number: int) -> Result:
    with (
        tempfile.TemporaryDirectory(prefix="dukou-scoring-") as folder,
        Judge(case.latency, case.faults) as judge,
        fresh(state, number, case.turns) as (where, engine),
    ):
        processes = [scorer(Path(folder), where, judge, case.in_flight) for _ in range(case.scorers)]
        try:
            idle = _wait_for(lambda: judge.counts()["requests"] > 0, processes)
            _wait_for(lambda: unscored(engine) == 0, processes)
            cpu = sum(_cpu(process.pid) for process in processes) - idle
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return _result(case, judge.counts(), engine, cpu)


def _wait_for(done: Any, processes: list[subprocess.Popen[bytes]]) -> float:
    """Waits, and returns the CPU seconds that the processes had used by then."""
    until = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > until or any(process.poll() is not None for process in processes):
            raise SystemExit("a scorer ended, or the case took too long")
        time.sleep(0.1)
    return sum(_cpu(process.pid) for process in processes)


def _result(case: Case, counts: dict[str, Any], engine: Engine, cpu: float) -> Result:
    at = sorted(counts["at"])
    first, last = int(EDGE * len(at)), int((1 - EDGE) * len(at)) - 1
    latency = counts["seconds"] / counts["requests"]
    with engine.connect() as connection:
        ok = connection.scalar(select(func.count()).select_from(votes).where(votes.c.status == "ok")) or 0
        billed = connection.scalar(select(func.count()).select_from(calls)) or 0
    if billed != counts["requests"]:
        raise SystemExit(f"the ledger has {billed} calls, the judge {counts['requests']}")
    return Result(
        votes_per_second=(last - first) / (at[last] - at[first]),
        ideal=case.scorers * case.in_flight / latency,
        latency=latency,
        most_at_once=counts["most_at_once"],
        cpu_ms_per_vote=1000 * cpu / counts["verdicts"],
        lost=unscored(engine),
        double_paid=counts["verdicts"] - ok,
    )


def unscored(engine: Engine) -> int:
    """Turns that could be scored and are not."""
    open_ones = turn_states.c.reason.is_distinct_from("empty_answer")
    with engine.connect() as connection:
        query = select(func.count()).select_from(turn_states)
        return connection.scalar(query.where(turn_states.c.stage != Stage.SCORED, open_ones)) or 0


def _cpu(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one line of JSON last (it is always printed)")
    parser.parse_args()
    state = Path(tempfile.mkdtemp(prefix="dukou-bench-"))
    try:
        answer = measure(state)
    finally:
        embedded.stop(state)
        shutil.rmtree(state, ignore_errors=True)
    print(json.dumps(answer))


def measure(state: Path) -> dict[str, Any]:
    cases = {
        "1 in flight": Case(1, 1, 1.0, 9),
        "8 in flight": Case(1, 8, 1.0, 70),
        "64 in flight": Case(1, 64, 1.0, 500),
        "1 scorer": Case(1, 16, 4.0, 40),
        "2 scorers": Case(2, 16, 4.0, 80),
        "4 scorers": Case(4, 16, 4.0, 160),
        "10% faults": Case(1, 16, 0.5, 150, faults=0.1),
    }
    heads = ("votes/s", "ideal", "share", "latency", "CPU ms", "lost", "double")
    say(f"{'case':<14}" + "".join(f"{head:>9}" for head in heads))
    found: dict[str, Result] = {}
    for number, (name, case) in enumerate(cases.items()):
        one = found[name] = run(case, state, number)
        say(
            f"{name:<14}{one.votes_per_second:>9.2f}{one.ideal:>9.2f}{one.efficiency:>9.2f}{one.latency:>9.2f}"
            f"{one.cpu_ms_per_vote:>9.1f}{one.lost:>9}{one.double_paid:>9}"
        )
    single = found["1 scorer"].votes_per_second
    return {
        "efficiency_at_1": round(found["1 in flight"].efficiency, 3),
        "efficiency_at_8": round(found["8 in flight"].efficiency, 3),
        "efficiency_at_64": round(found["64 in flight"].efficiency, 3),
        "scaling_2": round(found["2 scorers"].votes_per_second / single, 2),
        "scaling_4": round(found["4 scorers"].votes_per_second / single, 2),
        "cpu_ms_per_vote": round(found["64 in flight"].cpu_ms_per_vote, 1),
        "lost": sum(one.lost for one in found.values()),
        "double_paid": sum(one.double_paid for one in found.values()),
    }


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
