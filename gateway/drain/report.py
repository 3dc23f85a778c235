"""What the drainer is at, in a file beside the workers' counts: it is read while Postgres is away too."""

import contextlib
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

BEAT = 2.0  # seconds


@dataclass(frozen=True, slots=True)
class Report:
    """Times in seconds since 1970; counts since the drainer's start."""

    at: float
    oldest: float | None  # when the oldest request came that has ended and is not written
    waiting: dict[str, int]  # requests in the spool: for their reply, for their parent, to be written
    settled: int
    set_aside: int
    trouble: str | None  # why nothing is written now


@dataclass(slots=True)
class Reporter:
    """Writes a report every BEAT seconds at most."""

    path: Path
    now: Callable[[], float]
    _next: float = field(default=0.0)

    def tell(self, report: Callable[[float], Report]) -> None:
        now = self.now()
        if now < self._next:
            return
        self._next = now + BEAT
        written: dict[str, Any] = asdict(report(now))
        with contextlib.suppress(OSError):  # a full disk costs only what is shown
            self.path.parent.mkdir(parents=True, exist_ok=True)
            beside = self.path.with_suffix(".tmp")
            beside.write_bytes(orjson.dumps(written))
            os.replace(beside, self.path)
