"""What the drainer is at, in a file beside the workers' counts: it is read while Postgres is away too."""

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

FILE = "drainer.json"
BEAT = 2.0  # seconds between two reports
SILENT = 7.0  # seconds after the last report: the drainer is gone, or stands still in one pass
STANDSTILL = 5.0  # seconds for which turns wait and none is written


@dataclass(frozen=True, slots=True)
class Report:
    """Times in seconds since 1970; counts since the drainer's start."""

    at: float
    oldest: float | None  # when the oldest request came that has ended and is not written
    advanced_at: float  # when a turn was last written, or none waited to be
    waiting: dict[str, int]  # requests in the spool: for their reply, for their parent, to be written
    settled: int
    set_aside: int
    trouble: str | None  # why nothing is written now
    unrecorded: int = 0  # by `privacy.store_false`


def read(path: Path) -> Mapping[str, Any] | None:
    """The last report; None where there is none that can be read."""
    try:
        found = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    return found if isinstance(found, dict) else None


def standstill(report: Mapping[str, Any] | None, waiting_bytes: int, now: float) -> str | None:
    """Why turns wait in the spool and none is written; None where none waits, or the drainer advances.

    Args:
        report: the drainer's last one.
        waiting_bytes: of the spool, not drained yet.
        now: in seconds since 1970.
    """
    if report is None:
        return "no drainer has reported" if waiting_bytes else None
    at, advanced_at = float(report.get("at", 0.0)), report.get("advanced_at")
    if now - at >= SILENT:
        return f"the drainer last reported {now - at:.0f} s ago" if waiting_bytes else None
    if report.get("trouble") is not None:
        return str(report["trouble"]) if waiting_bytes else None
    if report.get("oldest") is None or advanced_at is None or now - advanced_at < STANDSTILL:
        return None
    return f"nothing was written for {now - advanced_at:.0f} s"


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
