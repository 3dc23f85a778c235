"""What a worker counts, and all workers' counts as Prometheus reads them.

Each worker leaves its counts in a small file, so that whichever worker is asked answers for all of them. The
drainer leaves one too (`gateway/drain/report.py`): nothing here asks Postgres.
"""

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

import orjson

from gateway.drain import report
from gateway.spool.writer import SpoolWriter

SAVE_SECONDS = 1.0  # between two writes of a worker's counts
Sample = tuple[Mapping[str, object], float]

#: name → type and help; docs/operations.md explains them.
FAMILIES: dict[str, tuple[str, str]] = {
    "dukou_requests_total": ("counter", "Requests answered, by endpoint and HTTP status."),
    "dukou_requests_in_flight": ("gauge", "Turns that run now."),
    "dukou_overhead_seconds_sum": ("counter", "Dukou's own time in requests, the engine's excluded."),
    "dukou_overhead_seconds_count": ("counter", "Requests in dukou_overhead_seconds_sum."),
    "dukou_refused_total": ("counter", "Requests that no engine was given, by the code of the refusal."),
    "dukou_bodies_at_deaths_total": ("counter", "Requests that were in flight when their engine died."),
    "dukou_turns_lost_total": ("counter", "Turns that were served and not recorded."),
    "dukou_turns_unrecorded_total": ("counter", "Turns that were served and by the settings not recorded."),
    "dukou_spool_bytes": ("gauge", "Bytes of all segments in the spool."),
    "dukou_spool_limit_bytes": ("gauge", "gateway.spool.max_bytes."),
    "dukou_drain_up": ("gauge", "1 while the drainer reports and Postgres takes what it writes."),
    "dukou_drain_lag_seconds": ("gauge", "Age of the oldest ended request that is not in Postgres yet."),
    "dukou_drain_waiting_turns": ("gauge", "Requests in the spool, by what they wait for."),
    "dukou_drain_settled_total": ("counter", "Requests moved to Postgres."),
    "dukou_drain_set_aside_total": ("counter", "Requests that could not become turns, kept in set_aside."),
    "dukou_drain_stalled": ("gauge", "1 while turns wait in the spool and the drainer does not advance."),
}


class Stopwatch:
    """Seconds that were Dukou's own; it runs from the start."""

    __slots__ = ("_since", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since: float | None = time.perf_counter()

    def run(self) -> None:
        if self._since is None:
            self._since = time.perf_counter()

    def pause(self) -> None:
        if self._since is not None:
            self.seconds += time.perf_counter() - self._since
            self._since = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stands still while the block runs: its time is the engine's."""
        self.pause()
        try:
            yield
        finally:
            self.run()


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """The counts of one worker since its start, as it leaves them for the others in a file."""

    requests: tuple[tuple[str, int, int], ...] = ()  # endpoint, HTTP status, number
    refused: Mapping[str, int] = field(default_factory=dict)  # code of the refusal → number
    at_deaths: int = 0  # requests that were in flight when their engine died
    in_flight: int = 0  # turns, now
    own_seconds: float = 0.0  # in `own_count` requests, the engine's time excluded
    own_count: int = 0
    lost: int = 0  # turns that were served and not recorded
    unrecorded: Mapping[str, int] = field(default_factory=dict)  # reason → number

    def encode(self) -> bytes:
        """The JSON in the file."""
        return orjson.dumps(self)

    @classmethod
    def decode(cls, text: bytes) -> "WorkerCounts":
        """Fields of a later release are ignored; missing ones have their defaults.

        Raises ValueError where the text is no JSON object.
        """
        stored = orjson.loads(text)
        if not isinstance(stored, dict):
            raise ValueError("these are no counts")  # noqa: TRY004 (a bad file, not a bad call)
        known = {name.name: stored[name.name] for name in fields(cls) if name.name in stored}
        requests = tuple((endpoint, status, n) for endpoint, status, n in known.pop("requests", ()))
        return cls(requests=requests, **known)


class Metrics:
    """One worker's counts; `folder` is where every process of this gateway leaves its own."""

    def __init__(self, folder: Path, spool: SpoolWriter) -> None:
        self._folder = folder
        self._spool = spool
        self._requests: Counter[tuple[str, int]] = Counter()
        self._unrecorded: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._at_deaths = 0
        self._own_seconds = 0.0
        self._own_count = 0

    def answered(self, endpoint: str, status: int, own_seconds: float | None = None) -> None:
        """A request got its answer; one that was refused before it became a turn has no time of its own."""
        self._requests[endpoint, status] += 1
        if own_seconds is not None:
            self._own_seconds += own_seconds
            self._own_count += 1

    def unrecorded(self, reason: str) -> None:
        """A turn is over of which, by the settings, nothing is kept."""
        self._unrecorded[reason] += 1

    def refused(self, code: str) -> None:
        """A request was refused for what it holds, by one of the codes of `errors.COUNTED`."""
        self._refused[code] += 1

    def died(self) -> None:
        """An engine died with a request in flight."""
        self._at_deaths += 1

    def save(self, in_flight: int) -> None:
        """Leaves the counts for the other workers. A full disk costs only what they show."""
        counts = WorkerCounts(
            requests=tuple((endpoint, status, n) for (endpoint, status), n in self._requests.items()),
            refused=dict(self._refused),
            at_deaths=self._at_deaths,
            in_flight=in_flight,
            own_seconds=self._own_seconds,
            own_count=self._own_count,
            lost=self._spool.lost,
            unrecorded=dict(self._unrecorded),
        )
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"worker-{os.getpid()}.json"
            draft = path.with_suffix(".tmp")
            draft.write_bytes(counts.encode())
            os.replace(draft, path)

    def close(self) -> None:
        (self._folder / f"worker-{os.getpid()}.json").unlink(missing_ok=True)

    def text(self, now: float) -> str:
        """Everything, in Prometheus' text format; `now` in seconds since 1970."""
        samples: dict[str, list[Sample]] = {
            "dukou_spool_bytes": [({}, self._spool.used_bytes)],
            "dukou_spool_limit_bytes": [({}, self._spool.limit_bytes)],
        }
        for pid, counts in sorted(_workers(self._folder).items()):
            for name, found in _of_worker(pid, counts).items():
                samples.setdefault(name, []).extend(found)
        drainer = report.read(self._folder / report.FILE_NAME)
        for name, found in _of_drainer(drainer, now).items():
            samples.setdefault(name, []).extend(found)
        stalled = report.standstill(drainer, self._spool.waiting_bytes, now) is not None
        samples["dukou_drain_stalled"] = [({}, int(stalled))]
        return render(samples)

    def standstill(self, now: float) -> str | None:
        """Why turns wait in the spool and none is written; `now` in seconds since 1970."""
        return report.standstill(report.read(self._folder / report.FILE_NAME), self._spool.waiting_bytes, now)


def render(samples: Mapping[str, Iterable[Sample]]) -> str:
    """The text format, version 0.0.4. What is unknown has no line."""
    lines: list[str] = []
    for name, (kind, words) in FAMILIES.items():
        found = list(samples.get(name, ()))
        if found:
            lines += [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{_labels(labels)} {value:.17g}" for labels, value in found]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, object]) -> str:
    def escaped(value: object) -> str:
        return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    listed = ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())
    return f"{{{listed}}}" if listed else ""


def _of_worker(pid: int, counts: WorkerCounts) -> dict[str, list[Sample]]:
    worker = {"worker": pid}
    return {
        "dukou_requests_total": [
            ({**worker, "endpoint": endpoint, "status": status}, n) for endpoint, status, n in counts.requests
        ],
        "dukou_refused_total": [({**worker, "code": code}, n) for code, n in counts.refused.items()],
        "dukou_bodies_at_deaths_total": [(worker, counts.at_deaths)],
        "dukou_requests_in_flight": [(worker, counts.in_flight)],
        "dukou_overhead_seconds_sum": [(worker, counts.own_seconds)],
        "dukou_overhead_seconds_count": [(worker, counts.own_count)],
        "dukou_turns_lost_total": [(worker, counts.lost)],
        "dukou_turns_unrecorded_total": [
            ({**worker, "reason": reason}, n) for reason, n in counts.unrecorded.items()
        ],
    }


def _of_drainer(told: report.DrainerReport | None, now: float) -> dict[str, list[Sample]]:
    if told is None:
        return {"dukou_drain_up": [({}, 0)]}
    up = now - told.at < report.SILENT_SECONDS and told.trouble is None
    samples: dict[str, list[Sample]] = {
        "dukou_drain_up": [({}, int(up))],
        "dukou_drain_waiting_turns": [({"for": what}, n) for what, n in told.waiting.items()],
        "dukou_drain_settled_total": [({}, told.settled)],
        "dukou_drain_set_aside_total": [({}, told.set_aside)],
    }
    if told.unrecorded:
        samples["dukou_turns_unrecorded_total"] = [
            ({"worker": "drainer", "reason": "store_false"}, told.unrecorded)
        ]
    if told.oldest is not None:
        samples["dukou_drain_lag_seconds"] = [({}, max(0.0, now - told.oldest))]
    return samples


def _workers(folder: Path) -> dict[int, WorkerCounts]:
    """The counts of the workers that live; those of dead ones are removed."""
    found: dict[int, WorkerCounts] = {}
    for path in folder.glob("worker-*.json"):
        pid = int(path.stem.removeprefix("worker-"))
        if not Path(f"/proc/{pid}").exists():
            path.unlink(missing_ok=True)
        elif (counts := _read(path)) is not None:
            found[pid] = counts
    return found


def _read(path: Path) -> WorkerCounts | None:
    """None where the file is gone or holds no counts."""
    try:
        return WorkerCounts.decode(path.read_bytes())
    except (OSError, ValueError):
        return None
