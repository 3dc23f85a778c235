"""Dukou's worker over 100,000 requests and with 1,000 slow streams open: do CPU and memory stay flat?"""

import sys
import threading
from collections.abc import Callable
from typing import Any

from bench.relaying.dukou import Dukou, count
from bench.relaying.measure import Load, memory_mb

_BLOCKS, _BLOCK = 10, 10_000
_BUSY = 32
_SLOW = 1000  # streams, an event a second each
_SETTLED_SECONDS = 30.0  # by when all of them are open

Send = Callable[[str, int, int], tuple[Load, float]]


def run(send: Send, dukou: Dukou) -> dict[str, Any]:
    """`send` takes a kind, a concurrency and a number of requests; figures are of the worker."""
    cpu_ms, memory, errors = [], [], 0
    for block in range(1, _BLOCKS + 1):
        done, used = send("whole", _BUSY, _BLOCK)
        errors += done.errors
        dukou.drain(block * _BLOCK)
        cpu_ms.append(round(used, 4))
        memory.append(round(memory_mb(dukou.worker.pid, "VmRSS"), 1))
        print(f"{block * _BLOCK:7} requests: {used:.3f} ms each, {memory[-1]:.0f} MB", file=sys.stderr)
    open_mb: list[float] = []
    look = threading.Timer(_SETTLED_SECONDS, lambda: open_mb.append(memory_mb(dukou.worker.pid, "VmRSS")))
    look.start()
    done, used = send("slow", _SLOW, _SLOW)
    look.join()
    sent = _BLOCKS * _BLOCK + _SLOW
    dukou.drain(sent)
    after = memory_mb(dukou.worker.pid, "VmRSS")
    print(
        f"{_SLOW} streams open: {open_mb[0]:.0f} MB, {used:.2f} ms each; then {after:.0f} MB", file=sys.stderr
    )
    return {
        "cpu_ms": cpu_ms,
        "memory_mb": memory,
        "slow_streams": {
            "cpu_ms": round(used, 3),
            "open_mb": round(open_mb[0], 1),
            "after_mb": round(after, 1),
        },
        "lost": sent - count(dukou.database),
        "errors": errors + done.errors,
    }
