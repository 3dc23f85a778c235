"""Turns wait and none is written: health, metrics and status say so, and why."""

from dataclasses import replace
from pathlib import Path

import pytest

from dukou.settings.serving import Spool
from dukou.store.funnel import STANDSTILL_SECONDS as STATUS_STANDSTILL_SECONDS
from dukou.store.processes import HEARTBEAT_SECONDS
from gateway.drain.report import (
    REPORT_SECONDS,
    SILENT_SECONDS,
    STANDSTILL_SECONDS,
    DrainerReport,
    Reporter,
    read,
    standstill,
)
from gateway.relay.metrics import SAVE_SECONDS, Metrics
from gateway.spool.reader import Positions
from gateway.spool.writer import SpoolWriter
from learner.status.facts import StatusFacts
from learner.status.sentence import explain
from tests.fakes.facts import DRAINER, QUIET, SETTINGS

NOW = 1_700_000_000.0
FINE = DrainerReport(NOW - 1, None, NOW - 1, waiting={}, settled=0, set_aside=0, trouble=None)


@pytest.mark.parametrize(
    ("report", "waiting_bytes", "said"),
    [
        (None, 0, None),
        (None, 10, "no drainer has reported"),
        (FINE, 10, None),
        (replace(FINE, at=NOW - 30), 0, None),
        (replace(FINE, at=NOW - 30), 10, "the drainer last reported 30 s ago"),
        (replace(FINE, trouble="the disk is full"), 10, "the disk is full"),
        (replace(FINE, trouble="the disk is full"), 0, None),
        (replace(FINE, oldest=NOW - 60), 10, None),  # a backlog that shrinks
        (replace(FINE, oldest=NOW - 60, advanced_at=NOW - 12), 10, "nothing was written for 12 s"),
        (replace(FINE, oldest=NOW - 60, advanced_at=None), 10, None),  # an older release's report
    ],
)
def test_a_drainer_that_does_not_advance_is_told_from_one_with_nothing_to_do(
    report, waiting_bytes, said
) -> None:
    assert standstill(report, waiting_bytes, NOW) == said


def test_it_is_said_within_ten_seconds() -> None:
    assert SILENT_SECONDS + SAVE_SECONDS <= 10
    assert STANDSTILL_SECONDS + REPORT_SECONDS + SAVE_SECONDS <= 10
    assert STATUS_STANDSTILL_SECONDS + HEARTBEAT_SECONDS <= 10


def test_a_worker_sees_what_is_not_drained_of_the_whole_spool(tmp_path: Path) -> None:
    other = tmp_path / "1-1-0.seg"
    other.write_bytes(b"x" * 100)
    spool = SpoolWriter(tmp_path, Spool())
    spool.open()
    assert spool.waiting_bytes == 100
    Positions(tmp_path / "positions.json").save({other.name: 60})
    spool._measure()
    assert spool.waiting_bytes == 40
    spool.close()


def test_metrics_say_so(tmp_path: Path) -> None:
    spool = SpoolWriter(tmp_path / "spool", Spool())
    metrics = Metrics(tmp_path / "metrics", spool)
    assert "dukou_drain_stalled 0" in metrics.text(NOW).splitlines()
    spool.waiting_bytes = 10
    assert "dukou_drain_stalled 1" in metrics.text(NOW).splitlines()
    told = DrainerReport(
        at=NOW, oldest=None, advanced_at=NOW, waiting={}, settled=0, set_aside=0, trouble=None
    )
    Reporter(tmp_path / "metrics" / "drainer.json", lambda: NOW).tell(lambda _: told)
    assert "dukou_drain_stalled 0" in metrics.text(NOW + 1).splitlines()
    assert "dukou_drain_stalled 1" in metrics.text(NOW + 9).splitlines()


@pytest.mark.parametrize("content", [b"[1]", b"{", b'{"at": []}', b'{"waiting": 3}', b'{"settled": "many"}'])
def test_a_report_that_cannot_be_read_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "drainer.json").write_bytes(content)
    assert read(tmp_path / "drainer.json") is None


def test_a_report_comes_back_as_it_was_written() -> None:
    written = DrainerReport(NOW, NOW - 7, NOW - 2, {"reply": 1, "parent": 2, "write": 3}, 9, 1, "full", 4)
    assert DrainerReport.decode(written.encode()) == written


def test_a_report_of_another_release_is_read() -> None:
    older = DrainerReport.decode(b'{"at": 5, "oldest": 1, "trouble": null, "waiting": {}, "new": [1]}')
    assert older == DrainerReport(5.0, 1.0, None, {}, settled=0, set_aside=0, trouble=None)


def drainer(**changes: object):
    """The status sentence's kind beside a drainer like this."""
    age = changes.pop("age", 1.0)
    doing = changes.pop("doing", "draining")
    changed = replace(DRAINER, age=age, doing=doing, detail=replace(DRAINER.drainer, **changes))
    others = tuple(one for one in QUIET.heartbeats if one.name != "drainer")
    return explain(StatusFacts(SETTINGS, replace(QUIET, heartbeats=(changed, *others))))


def test_the_status_sentence_names_a_drainer_that_stands_still() -> None:
    answer = drainer(to_write=5, advanced_ago=20.0)
    assert answer.kind == "drain_standstill"
    assert "5 turns lie in the gateway's spool and for 21s none was written" in answer.sentence()
    assert "start its drainer" in drainer(to_write=1, advanced_ago=0.0, age=60.0).sentence()


@pytest.mark.parametrize(
    "changes",
    [
        {"to_write": 0, "advanced_ago": 0.0, "age": 60.0},
        {"to_write": 5, "advanced_ago": 1.0},
        {"to_write": 5},  # an older release's heartbeat
        {"to_write": 5, "advanced_ago": 20.0, "doing": "stopped"},
        {"in_flight": 5, "advanced_ago": 20.0},
    ],
)
def test_a_drainer_that_keeps_up_or_ended_in_order_is_not_named(changes: dict[str, object]) -> None:
    assert drainer(**changes).kind != "drain_standstill"
