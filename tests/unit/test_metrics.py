"""The metrics: what a scrape of any worker shows of all of them, and of the drainer."""

import contextlib
import os
from pathlib import Path

import orjson
import pytest

from dukou.settings.serving import Spool
from gateway.drain.report import DrainerReport, Reporter
from gateway.relay import identity
from gateway.relay.metrics import FAMILIES, Metrics, Stopwatch, WorkerCounts, render
from gateway.spool.writer import SpoolWriter

DOCS = Path(__file__).parents[2] / "docs" / "operations.md"
NOW = 1_700_000_000.0


@pytest.fixture
def metrics(tmp_path: Path) -> Metrics:
    return Metrics(tmp_path / "metrics", SpoolWriter(tmp_path / "spool", Spool(max_bytes=1000)))


def lines(metrics: Metrics) -> list[str]:
    return [line for line in metrics.text(NOW).splitlines() if not line.startswith("#")]


def test_a_worker_shows_its_own_counts(metrics: Metrics) -> None:
    metrics.answered("/v1/chat/completions", 200, 0.25)
    metrics.answered("/v1/chat/completions", 200, 0.5)
    metrics.answered("other", 404)
    metrics.refused("request_kills_engines")
    metrics.died()
    metrics.save(in_flight=3)
    me = f'worker="{os.getpid()}"'
    assert set(lines(metrics)) == {
        f'dukou_requests_total{{{me},endpoint="/v1/chat/completions",status="200"}} 2',
        f'dukou_requests_total{{{me},endpoint="other",status="404"}} 1',
        f'dukou_refused_total{{{me},code="request_kills_engines"}} 1',
        f"dukou_bodies_at_deaths_total{{{me}}} 1",
        f"dukou_requests_in_flight{{{me}}} 3",
        f"dukou_overhead_seconds_sum{{{me}}} 0.75",
        f"dukou_overhead_seconds_count{{{me}}} 2",
        f"dukou_turns_lost_total{{{me}}} 0",
        "dukou_spool_bytes 0",
        "dukou_spool_limit_bytes 1000",
        "dukou_drain_up 0",
        "dukou_drain_stalled 0",
    }


def test_other_workers_counts_are_shown_and_dead_ones_are_removed(metrics: Metrics, tmp_path: Path) -> None:
    metrics.save(0)
    own = (tmp_path / "metrics" / f"worker-{os.getpid()}.json").read_bytes()
    other, dead = (tmp_path / "metrics" / f"worker-{pid}.json" for pid in (os.getppid(), 2**22 + 1))
    other.write_bytes(own)
    dead.write_bytes(own)
    assert f'dukou_turns_lost_total{{worker="{os.getppid()}"}} 0' in lines(metrics)
    assert not dead.exists()


def test_a_workers_counts_are_read_as_they_were_written_and_other_releases_do_no_harm(
    metrics: Metrics, tmp_path: Path
) -> None:
    counts = WorkerCounts((("other", 404, 1),), {"private_field": 2}, 3, 4, 0.5, 6, 7, {"store_false": 8})
    assert WorkerCounts.decode(counts.encode()) == counts
    assert orjson.loads(counts.encode()) == {
        "requests": [["other", 404, 1]],
        "refused": {"private_field": 2},
        "at_deaths": 3,
        "in_flight": 4,
        "own_seconds": 0.5,
        "own_count": 6,
        "lost": 7,
        "unrecorded": {"store_false": 8},
    }
    assert WorkerCounts.decode(b'{"later": 1, "lost": 7}') == WorkerCounts(lost=7)
    (tmp_path / "metrics").mkdir(exist_ok=True)
    (tmp_path / "metrics" / f"worker-{os.getppid()}.json").write_bytes(b"[1]")
    assert not any(f'worker="{os.getppid()}"' in line for line in lines(metrics))


def report(**changes: object) -> DrainerReport:
    waiting = {"reply": 1, "parent": 2, "write": 3}
    known = {"at": NOW, "oldest": NOW - 7, "advanced_at": NOW, "waiting": waiting}
    known |= {"settled": 9, "set_aside": 1, "trouble": None}
    return DrainerReport(**(known | changes))  # type: ignore[arg-type]


def leave(tmp_path: Path, left: DrainerReport) -> None:
    Reporter(tmp_path / "metrics" / "drainer.json", lambda: NOW).tell(lambda _: left)


def test_the_drainers_lag_is_the_age_of_what_waits_longest(metrics: Metrics, tmp_path: Path) -> None:
    leave(tmp_path, report())
    shown = lines(metrics)
    assert "dukou_drain_lag_seconds 7" in shown
    assert "dukou_drain_up 1" in shown
    assert 'dukou_drain_waiting_turns{for="parent"} 2' in shown


def test_turns_that_may_not_be_kept_are_counted_where_they_end(metrics: Metrics, tmp_path: Path) -> None:
    metrics.unrecorded("store_false")
    metrics.save(0)
    leave(tmp_path, report(unrecorded=3))
    counts = {line for line in lines(metrics) if line.startswith("dukou_turns_unrecorded_total")}
    assert counts == {
        f'dukou_turns_unrecorded_total{{worker="{os.getpid()}",reason="store_false"}} 1',
        'dukou_turns_unrecorded_total{worker="drainer",reason="store_false"} 3',
    }


def test_a_lag_that_is_not_there_has_no_line(metrics: Metrics, tmp_path: Path) -> None:
    leave(tmp_path, report(oldest=None))
    assert not any("lag" in line for line in lines(metrics))


@pytest.mark.parametrize("changes", [{"at": NOW - 16}, {"trouble": "nobody answers"}])
def test_a_drainer_that_is_silent_or_in_trouble_is_not_up(
    metrics: Metrics, tmp_path: Path, changes: dict[str, object]
) -> None:
    leave(tmp_path, report(**changes))
    assert "dukou_drain_up 0" in lines(metrics)


def test_a_report_is_written_every_two_seconds_at_most(tmp_path: Path) -> None:
    clock = [NOW]
    reporter = Reporter(tmp_path / "drainer.json", lambda: clock[0])
    for clock[0] in (NOW, NOW + 1.9, NOW + 2):
        reporter.tell(lambda at: report(at=at))
        assert orjson.loads((tmp_path / "drainer.json").read_bytes())["at"] == clock[0] - clock[0] % 2


def test_labels_are_escaped() -> None:
    text = render({"dukou_drain_waiting_turns": [({"for": 'a"b\\c\n'}, 1)]})
    assert text.splitlines()[-1] == 'dukou_drain_waiting_turns{for="a\\"b\\\\c\\n"} 1'


def test_a_stopwatch_counts_only_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 3.0, 10.0, 10.5])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    watch = Stopwatch()
    watch.pause()
    watch.pause()
    watch.run()
    watch.run()
    watch.pause()
    assert watch.seconds == 2.5


def test_a_stopwatch_stands_still_in_a_paused_block_and_runs_after_it_even_when_the_block_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([1.0, 3.0, 10.0, 10.5])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    watch = Stopwatch()
    with contextlib.suppress(ValueError), watch.paused():
        raise ValueError
    watch.pause()
    assert watch.seconds == 2.5


@pytest.mark.parametrize(
    ("path", "client", "headers", "is_open"),
    [
        ("/healthz", ("203.0.113.9", 1), {}, True),
        ("/metrics", ("127.0.0.1", 1), {}, True),
        ("/metrics", ("::1", 1), {}, True),
        ("/metrics", ("203.0.113.9", 1), {}, False),
        ("/metrics", ("127.0.0.1", 1), {"x-forwarded-for": "203.0.113.9"}, False),
        ("/metrics", None, {}, False),
        ("/v1/models", ("127.0.0.1", 1), {}, False),
    ],
)
def test_metrics_need_a_key_but_from_this_machine(
    path: str, client: tuple[str, int] | None, headers: dict[str, str], is_open: bool
) -> None:
    assert identity.is_open(path, {"client": client}, headers) is is_open


@pytest.mark.parametrize("name", FAMILIES)
def test_every_metric_is_documented(name: str) -> None:
    assert f"`{name}`" in DOCS.read_text()
