"""`/metrics` of a running worker, and the drainer's report while Postgres is away."""

import threading
from pathlib import Path

import orjson

from dukou.store.postgres_errors import PostgresUnreachableError
from gateway.drain import process as drain
from gateway.drain.report import Reporter
from tests.fakes.ferry import Ferry
from tests.fakes.gateway import ASK, CHAT, config_for, running
from tests.fakes.spooled import user
from tests.fakes.upstream import FakeUpstream, Send, answer

OK = [Send(answer(200, {"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}]}))]


async def test_a_scrape_shows_what_was_answered_and_asks_no_engine(tmp_path: Path) -> None:
    async with FakeUpstream(OK) as engine, running(config_for(tmp_path, engine.url)) as gw:
        await gw.client.post(CHAT, json=ASK)
        await gw.client.post(CHAT, content=b"no json")
        await gw.client.get("/nowhere/else")
        await gw.settled(2)
        shown = await gw.client.get("/metrics")
        asked = [request.path for request in engine.requests]
    assert shown.headers["content-type"].startswith("text/plain; version=0.0.4")
    counts = [line.partition(",")[2] for line in shown.text.splitlines() if "requests_total{" in line]
    assert f'endpoint="{CHAT}",status="200"}} 1' in counts
    assert f'endpoint="{CHAT}",status="400"}} 1' in counts
    assert "/metrics" not in asked


def test_the_drainer_reports_while_postgres_is_away(tmp_path: Path, db) -> None:
    ferry = Ferry(tmp_path, db)
    ferry.say([user("1")])
    path, stop = tmp_path / "drainer.json", threading.Event()
    reports = []

    def connect():
        if len(reports) < 3:
            raise PostgresUnreachableError("nobody answers")
        return db

    def wait(seconds):
        ferry.clock += 2
        reports.append(orjson.loads(path.read_bytes()))
        if len(reports) > 5:
            stop.set()

    drain.run(ferry.drainer, connect, stop, wait, Reporter(path, lambda: ferry.clock))
    assert [report["trouble"] for report in reports[:3]] == ["nobody answers"] * 3
    assert (reports[-1]["trouble"], reports[-1]["settled"], reports[-1]["oldest"]) == (None, 1, None)
