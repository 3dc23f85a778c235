"""Hostile requests and replies between good turns: every good turn must become a row.

Clients send good chat requests and, between them, requests with anything at any place; the engine's stand-in
answers the others with replies of the same kind. Both come from the grammars of the property tests, with a
fresh seed in every run unless one is given.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg
from hypothesis import seed as with_seed

from bench.faulting.engine import answer_to
from bench.faulting.stack import Stack
from bench.hostility import code, engine
from tests.fakes.grammar import REPLIES, REQUESTS, examples

CLIENTS, WORKERS = 8, 2
EXAMPLES = 3000  # of requests, and of replies
SETTLE_SECONDS = 120.0  # for the drainer, after the last request
CHAT = "/v1/chat/completions"
_GOOD = "good question"
#: By the request's own id: putting messages together again takes minutes for a hundred thousand turns.
_ROWS = (
    "select client_request_id, status, response_text, cardinality(response_ids) from turn"
    f" where client_request_id like '{_GOOD} %'"
)
_REFUSED = (
    "select (select count(*) from turns),"
    " (select count(*) from turns where untrainable_reason = 'unreadable'),"
    " (select count(*) from set_aside)"
)


@dataclass(slots=True)
class Seen:
    """What the clients saw."""

    good: dict[str, str] = field(default_factory=dict)  # question → answer, as the client got it
    wrong: list[str] = field(default_factory=list)  # good requests that were not answered as they should be
    hostile: Counter[str] = field(default_factory=Counter)  # status of each hostile request
    ours: list[str] = field(default_factory=list)  # answers 500 that are of Dukou's making


async def measure(seconds: float, seed: int, *, keep: bool) -> dict[str, object]:
    """The whole run; returns the figures."""
    folder = Path(tempfile.mkdtemp(prefix="dukou-hostile-"))
    requests, replies = _examples(REQUESTS, seed), _examples(REPLIES, seed + 1)
    engine.save(folder / "replies", replies)
    seen, began = Seen(), time.monotonic()
    stack = await Stack.create(folder, WORKERS, engine=("bench.hostility.engine", str(folder / "replies")))
    try:
        async with stack.proxy:
            await stack.start()
            drainer = stack.children("drain")
            await _traffic(stack, seen, requests, seconds, seed)
            rows = await _settled(stack, seen)
            same = stack.children("drain") == drainer
            restarts = (folder / "log").read_text().count("drainer ended") + (not same)
            turns, unreadable, aside = await asyncio.to_thread(_query, stack, _REFUSED)
    finally:
        await asyncio.to_thread(stack.stop)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    lost = [question for question in seen.good if question not in rows]
    other = [question for question, told in seen.good.items() if rows.get(question, told) != told]
    _tell(seen, lost, other)
    return {
        "good": len(seen.good),
        "good_lost": len(lost),
        "good_recorded_otherwise": len(other),
        "good_answered_wrong": len(seen.wrong),
        "hostile": seen.hostile.total(),
        "hostile_by_status": dict(sorted(seen.hostile.items())),
        "answers_500_of_dukous_making": len(seen.ours),
        "drainer_restarts": int(restarts),
        "rows": turns,
        "rows_unreadable": unreadable,
        "set_aside": aside,
        "seed": seed,
        "seconds": round(time.monotonic() - began, 1),
        "code": code.digest(),
        "not_run": None,
    }


def _examples(strategy: Any, seed: int) -> list[bytes]:
    found = examples(strategy, EXAMPLES, decorate=with_seed(seed))
    return [body.replace(b'"policy"', b'"m"') for body in found]


async def _traffic(stack: Stack, seen: Seen, requests: list[bytes], seconds: float, seed: int) -> None:
    deadline = time.monotonic() + seconds
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{stack.port}", timeout=60) as client:
        await asyncio.gather(
            *(
                _client(client, number, seen, requests, deadline, random.Random(seed + number))
                for number in range(CLIENTS)
            )
        )


async def _client(
    client: httpx.AsyncClient,
    number: int,
    seen: Seen,
    requests: list[bytes],
    deadline: float,
    dice: random.Random,
) -> None:
    count = 0
    while time.monotonic() < deadline:
        count += 1
        await _hostile(client, seen, dice.choice(requests), dice)
        await _good(client, seen, f"{_GOOD} {number}-{count}", stream=dice.random() < 0.5)


async def _good(client: httpx.AsyncClient, seen: Seen, question: str, *, stream: bool) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": question}], "stream": stream}
    told = answer_to(question.rsplit(" ", 1)[-1])
    try:
        answer = await client.post(CHAT, json=body, headers={"x-request-id": question})
    except httpx.HTTPError as error:
        seen.wrong.append(f"{question}: {type(error).__name__}")
        return
    if answer.status_code != 200 or not _says(answer, told, stream=stream):
        seen.wrong.append(f"{question}: {answer.status_code} {answer.text[:200]}")
    else:
        seen.good[question] = told


def _says(answer: httpx.Response, told: str, *, stream: bool) -> bool:
    if not stream:
        return bool(answer.json()["choices"][0]["message"]["content"] == told)
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    pieces = [json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events]
    return "".join(pieces) == told and answer.text.rstrip().endswith("[DONE]")


async def _hostile(client: httpx.AsyncClient, seen: Seen, body: bytes, dice: random.Random) -> None:
    """Anything may come back, but no fault of Dukou's own."""
    if dice.random() < 0.5:  # a good request that the engine answers badly
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()
    try:
        answer = await client.post(CHAT, content=body, headers={"content-type": "application/json"})
    except httpx.HTTPError as error:
        seen.hostile[type(error).__name__] += 1
        return
    seen.hostile[str(answer.status_code)] += 1
    if answer.status_code == 500 and "internal error" in answer.text:
        seen.ours.append(f"{body[:300]!r} -> {answer.text[:300]}")


async def _settled(stack: Stack, seen: Seen) -> dict[str, str]:
    """Question → recorded answer, once no good turn is missing or the time is over."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        rows = await asyncio.to_thread(_rows, stack)
        if seen.good.keys() <= rows.keys() or time.monotonic() > deadline:
            return rows
        await asyncio.sleep(1)


def _rows(stack: Stack) -> dict[str, str]:
    with psycopg.connect(host=_socket(stack), user="dukou", dbname="dukou") as connection:
        found = connection.execute(_ROWS).fetchall()
    return {question: said for question, status, said, tokens in found if status == "ok" and tokens}


def _query(stack: Stack, statement: Any) -> tuple[int, ...]:
    with psycopg.connect(host=_socket(stack), user="dukou", dbname="dukou") as connection:
        return connection.execute(statement).fetchone() or ()


def _socket(stack: Stack) -> str:
    return str(Path(stack.proxy.target).parent)


def _tell(seen: Seen, lost: list[str], other: list[str]) -> None:
    for name, wrong in (
        ("lost", lost),
        ("recorded otherwise", other),
        ("answered wrong", seen.wrong),
        ("answers 500 of Dukou's making", seen.ours),
    ):
        for line in wrong[:5]:
            print(f"{name}: {line}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.hostile", description=__doc__)
    parser.add_argument("--json", action="store_true", help="the figures as one line of JSON, last on stdout")
    parser.add_argument("--seconds", type=float, default=60.0, help="of traffic")
    parser.add_argument("--seed", type=int, default=None, help="of the examples; default: a fresh one")
    parser.add_argument("--keep", action="store_true", help="leave the folder with log, spool and Postgres")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(2**31)
    figures = asyncio.run(measure(given.seconds, seed, keep=given.keep))
    for name, value in figures.items():
        print(f"{name.replace('_', ' '):<32} {value}", file=sys.stderr, flush=True)
    if given.json:
        print(json.dumps(figures))
    bad = ("good_lost", "good_recorded_otherwise", "good_answered_wrong")
    return (
        1 if any(figures[name] for name in (*bad, "answers_500_of_dukous_making", "drainer_restarts")) else 0
    )


if __name__ == "__main__":
    sys.exit(main())
