"""The faults: each happens once, leaves everything running or about to, and says whether it killed."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable

import psycopg

from bench.faulting.books import Books, Killed
from bench.faulting.procfs import children_of, clients_of
from bench.faulting.stack import Stack, kill

OUTAGE = 1.0  # seconds that a cut or a stall lasts
DELAY = 0.05  # seconds that a slow connection adds to each answer of Postgres

Fault = Callable[[Stack, Books, random.Random], Awaitable[bool]]


async def worker(stack: Stack, books: Books, dice: random.Random) -> bool:
    """kill -9 of one gateway worker; its supervisor starts another."""
    workers = stack.children("serve")
    if not workers:
        return False
    victim = dice.choice(workers)
    os.kill(victim, signal.SIGSTOP)  # so that it takes no connection between the look and the kill
    await asyncio.sleep(0.002)
    now = time.monotonic()
    books.kills.append(Killed(now, clients_of(victim, stack.port), now + OUTAGE))
    kill(victim)
    return True


async def drainer(stack: Stack, books: Books, dice: random.Random) -> bool:
    """kill -9 of the drainer, anywhere in its work."""
    return _kill_each(stack.children("drain"))


async def reconciler(stack: Stack, books: Books, dice: random.Random) -> bool:
    """kill -9 of the reconciler."""
    return _kill_each(stack.children("reconcile"))


async def gateway(stack: Stack, books: Books, dice: random.Random) -> bool:
    """kill -9 of the supervisor and all its children at once, and a new start."""
    assert stack.gateway is not None
    felt = Killed(time.monotonic(), None, float("inf"))
    books.kills.append(felt)
    children = children_of(stack.gateway.pid)
    kill(stack.gateway.pid)
    _kill_each(list(children))
    stack.gateway.wait()
    await stack.start_gateway()
    felt.over = time.monotonic()
    return True


async def learner(stack: Stack, books: Books, dice: random.Random) -> bool:
    """kill -9 of the learner, and a new start."""
    assert stack.learner is not None
    stack.learner.kill()
    stack.learner.wait()
    stack.start_learner()
    return True


async def postgres(stack: Stack, books: Books, dice: random.Random) -> bool:
    """kill -9 of Postgres, and crash recovery."""
    kill(stack.postmaster())
    await asyncio.sleep(0.5)  # its children notice by themselves
    await stack.start_postgres()
    return True


async def backends(stack: Stack, books: Books, dice: random.Random) -> bool:
    """Terminates every connection of Dukou's from inside Postgres."""
    socket_folder = os.path.dirname(stack.proxy.target)
    with psycopg.connect(host=socket_folder, user="dukou", dbname="dukou", autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
    return False


async def cut(stack: Stack, books: Books, dice: random.Random) -> bool:
    """The network to Postgres goes away for a while."""
    stack.proxy.is_shut = True
    stack.proxy.cut()
    await asyncio.sleep(OUTAGE)
    stack.proxy.is_shut = False
    return False


async def delay(stack: Stack, books: Books, dice: random.Random) -> bool:
    """The network to Postgres is slow for a while."""
    stack.proxy.delay = DELAY
    await asyncio.sleep(OUTAGE)
    stack.proxy.delay = 0.0
    return False


async def lost_commit(stack: Stack, books: Books, dice: random.Random) -> bool:
    """The connection ends after a COMMIT was done and before anybody heard of it."""
    stack.proxy.loses_commit = True
    return False


async def stall(stack: Stack, books: Books, dice: random.Random) -> bool:
    """Postgres stands still, as on a disk that does not answer."""
    pids = [stack.postmaster(), *children_of(stack.postmaster())]
    _signal_each(pids, signal.SIGSTOP)
    await asyncio.sleep(OUTAGE)
    _signal_each(pids, signal.SIGCONT)
    return False


#: One round. Workers die most often: theirs are the only deaths that a client may feel.
ROUND: tuple[Fault, ...] = (
    worker, drainer, worker, backends, worker, learner, lost_commit, drainer, worker, cut, drainer,
    worker, delay, reconciler, worker, postgres, drainer, worker, lost_commit, stall, worker, gateway,
)  # fmt: skip


def _kill_each(pids: list[int]) -> bool:
    return _signal_each(pids, signal.SIGKILL)


def _signal_each(pids: list[int], number: int) -> bool:
    """Whether one of them was still there."""
    reached = False
    for pid in pids:
        try:
            os.kill(pid, number)
            reached = True
        except ProcessLookupError:
            continue
    return reached
