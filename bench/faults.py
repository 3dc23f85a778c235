"""Kills and cuts everything under steady load, and accounts for every acknowledged request.

64 clients hold conversations, streamed and not, each request with an id of its own in the body. Meanwhile
workers, drainer, reconciler, the whole gateway, Postgres and the learner are killed with -9, the way to
Postgres is cut, slowed and made to lose a COMMIT's answer, backends are terminated, Postgres is stalled.
Afterwards each request whose client had its last byte must be in Postgres, once, as the client got it.
"""

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

from bench.faulting import faults
from bench.faulting.books import Account, Books, Row, account
from bench.faulting.clients import Client
from bench.faulting.stack import Stack

CLIENTS = 64
WORKERS = 3
KILLS, QUICK_KILLS = 200, 20
SETTLE_SECONDS = 240.0  # for the drainer, after the last fault
_ROWS = (
    "select messages -> -1 ->> 'content', id, parent_id, status, response_text from turn where kind = 'main'"
)


@dataclass(frozen=True, slots=True)
class Asked:
    kills: int
    clients: int
    pause: float  # seconds between two faults, and between two requests of a client
    seed: int
    keep: bool


async def measure(asked: Asked) -> dict[str, object]:
    """The whole run; returns the figures."""
    folder = Path(tempfile.mkdtemp(prefix="dukou-faults-"))
    books, done, began = Books(), Counter[str](), time.monotonic()
    stack = await Stack.create(folder, WORKERS)
    try:
        async with stack.proxy:
            await stack.start()
            await _under_load(stack, books, asked, done)
            result = await _settled(stack, books)
    finally:
        await asyncio.to_thread(stack.stop)
        if not asked.keep:
            shutil.rmtree(folder, ignore_errors=True)
    _say(f"{done.total()} faults in {time.monotonic() - began:.0f} s: {dict(done)}")
    return _figures(books, result, done, stack.proxy.lost_commits)


async def _under_load(stack: Stack, books: Books, asked: Asked, done: Counter[str]) -> None:
    stop, dice = asyncio.Event(), random.Random(asked.seed)
    clients = [Client(f"c{number}", stack.port, books, asked.pause) for number in range(asked.clients)]
    running = [asyncio.create_task(client.run(stop)) for client in clients]
    kills = 0
    for fault in _rounds():
        if kills >= asked.kills:
            break
        await asyncio.sleep(asked.pause * dice.uniform(0.5, 1.5))
        if await fault(stack, books, dice):
            kills += 1
            done["kills"] += 1
            _progress(kills, asked.kills, books)
        else:
            done[fault.__name__] += 1
    stop.set()
    await asyncio.gather(*running)


def _rounds() -> Iterator[faults.Fault]:
    while True:
        yield from faults.ROUND


async def _settled(stack: Stack, books: Books) -> Account:
    """The account, once nothing is missing any more or the time is over."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        found = account(books.acknowledged, await asyncio.to_thread(_rows, stack))
        if not found.lost or time.monotonic() > deadline:
            return found
        await asyncio.sleep(2)


def _rows(stack: Stack) -> list[Row]:
    folder = str(Path(stack.proxy.target).parent)
    with psycopg.connect(host=folder, user="dukou", dbname="dukou") as connection:
        found = connection.execute(_ROWS)
        return [
            Row(str(said).rsplit(" ", 1)[-1], str(turn), str(parent) if parent else None, status, text)
            for said, turn, parent, status, text in found
        ]


def _figures(books: Books, found: Account, done: Counter[str], lost_commits: int) -> dict[str, object]:
    unexplained = books.unexplained()
    for name, wrong in (
        ("lost", found.lost),
        ("duplicated", found.duplicated),
        ("damaged", found.damaged),
        ("misplaced", found.misplaced),
        ("failures unexplained", unexplained),
    ):
        if wrong:
            _say(f"{name}: {list(wrong)[:5]}")
    return {
        "acknowledged": len(books.acknowledged),
        "recorded": found.recorded,
        "lost": len(found.lost),
        "duplicated": len(found.duplicated),
        "client_errors_not_caused_by_killing_its_own_worker": len(unexplained),
        "kills": done["kills"],
        "recorded_otherwise_than_received": len(found.damaged),
        "wrong_parents": len(found.misplaced),
        "client_errors": len(books.failures),
        "other_faults": sum(count for name, count in done.items() if name != "kills"),
        "commits_whose_answer_was_lost": lost_commits,
    }


def _progress(kills: int, of: int, books: Books) -> None:
    if kills % 20 == 0:
        _say(
            f"{kills}/{of} kills, {len(books.acknowledged)} acknowledged, {len(books.failures)} client errors"
        )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.faults", description=__doc__)
    parser.add_argument("--json", action="store_true", help="the figures as one line of JSON, last on stdout")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_KILLS} kills instead of {KILLS}")
    parser.add_argument("--kills", type=int, help="so many kills")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument(
        "--pause", type=float, default=0.6, help="seconds between faults, and between requests"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave the folder with log, spool and Postgres")
    given = parser.parse_args()
    kills = given.kills or (QUICK_KILLS if given.quick else KILLS)
    figures = asyncio.run(measure(Asked(kills, given.clients, given.pause, given.seed, given.keep)))
    for name, value in figures.items():
        _say(f"{name.replace('_', ' '):<55} {value}")
    if given.json:
        print(json.dumps(figures))
    sound = not (figures["lost"] or figures["duplicated"])
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
