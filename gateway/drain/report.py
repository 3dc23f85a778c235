"""The drainer's report: a file next to the workers' counts, which is read while Postgres is away too."""

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

FILE_NAME = "drainer.json"
REPORT_SECONDS = 2.0  # between two reports
SILENT_SECONDS = 7.0  # after the last report: the drainer is gone, or stands still in one pass
STANDSTILL_SECONDS = 5.0  # for which turns wait and none is written


@dataclass(frozen=True, slots=True)
class DrainerReport:
    """Times in seconds since 1970; counts since the drainer's start."""

    at: float
    oldest: float | None  # arrival of the oldest request that has ended and is not written
    advanced_at: float | None  # when a turn was last written, or none waited to be; None: an older release
    waiting: dict[str, int]  # requests in the spool: for their `reply`, for their `parent`, to be written
    settled: int
    set_aside: int
    trouble: str | None  # why nothing is written now
    unrecorded: int = 0  # by `privacy.store_false`

    def encode(self) -> bytes:
        """A JSON object."""
        return orjson.dumps(asdict(self))

    @staticmethod
    def decode(encoded: bytes) -> "DrainerReport":
        """Ignores unknown keys and fills in missing ones.

        Raises:
            ValueError: not a JSON object, or one whose values have other types.
        """
        try:
            return _from_json(orjson.loads(encoded))
        except (TypeError, AttributeError) as error:
            raise ValueError(f"the drainer's report cannot be read: {error}") from error


def _from_json(found: Mapping[str, Any]) -> DrainerReport:
    trouble = found.get("trouble")
    return DrainerReport(
        at=float(found.get("at", 0.0)),
        oldest=_number(found, "oldest"),
        advanced_at=_number(found, "advanced_at"),
        waiting={str(what): int(count) for what, count in found.get("waiting", {}).items()},
        settled=int(found.get("settled", 0)),
        set_aside=int(found.get("set_aside", 0)),
        trouble=None if trouble is None else str(trouble),
        unrecorded=int(found.get("unrecorded", 0)),
    )


def _number(found: Mapping[str, Any], key: str) -> float | None:
    value = found.get(key)
    return None if value is None else float(value)


def read(path: Path) -> DrainerReport | None:
    """The last report; None where there is none that can be read."""
    try:
        return DrainerReport.decode(path.read_bytes())
    except (OSError, ValueError):
        return None


def standstill(report: DrainerReport | None, waiting_bytes: int, now: float) -> str | None:
    """The reason why turns wait in the spool and none is written; None: none waits, or the drainer advances.

    Args:
        report: the drainer's last one.
        waiting_bytes: bytes in the spool that are not drained yet.
        now: in seconds since 1970.
    """
    if report is None:
        return "no drainer has reported" if waiting_bytes else None
    if now - report.at >= SILENT_SECONDS:
        return f"the drainer last reported {now - report.at:.0f} s ago" if waiting_bytes else None
    if report.trouble is not None:
        return report.trouble if waiting_bytes else None
    advanced_at = report.advanced_at
    if report.oldest is None or advanced_at is None or now - advanced_at < STANDSTILL_SECONDS:
        return None
    return f"nothing was written for {now - advanced_at:.0f} s"


@dataclass(slots=True)
class Reporter:
    """Writes the report, at most every REPORT_SECONDS. `now` gives seconds since 1970."""

    path: Path
    now: Callable[[], float]
    _next_at: float = field(default=0.0)

    def tell(self, report: Callable[[float], DrainerReport]) -> None:
        """Writes what `report` returns for the present time, where a report is due."""
        now = self.now()
        if now < self._next_at:
            return
        self._next_at = now + REPORT_SECONDS
        encoded = report(now).encode()
        with contextlib.suppress(OSError):  # a full disk costs only what is shown
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self.path.with_suffix(".tmp")
            temporary.write_bytes(encoded)
            os.replace(temporary, self.path)
