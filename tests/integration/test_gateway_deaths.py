"""Engines that die of a request, or lose it: who gets it next, who is refused, who is told to stop."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from gateway.relay import suspects
from gateway.relay.deaths import REMEMBERED
from tests.fakes.gateway import ASK, CHAT, STREAM, config_for, route, running
from tests.fakes.upstream import (
    DIE,
    DONE,
    FIN,
    RST,
    FakeUpstream,
    Send,
    Sleep,
    Step,
    Wait,
    answer,
    chunk,
    chunked,
    event,
    stream_head,
)

pytestmark = pytest.mark.anyio

OK: list[Step] = [
    Send(answer(200, {"choices": [{"index": 0, "message": {"content": "yo"}, "finish_reason": "stop"}]}))
]
WHOLE = event(chunk({"content": "yo"})) + event(chunk({}, "stop")) + DONE
TOLD: dict[str, list[Step]] = {"/abort_request": [Send(answer(200, {}))]}


def ask(content: str, **more: Any) -> dict[str, Any]:
    return {**ASK, "messages": [{"role": "user", "content": content}], **more}


async def fleet(stack: AsyncExitStack, *scripts: list[Step]) -> list[FakeUpstream]:
    return [await stack.enter_async_context(FakeUpstream(script)) for script in scripts]


@pytest.fixture(autouse=True)
def _a_look_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects, "_LOOK_SECONDS", 0.0)


@pytest.mark.parametrize("body", [ASK, STREAM])
async def test_a_request_that_kills_hits_two_of_three_engines_and_is_then_refused_by_every_worker(
    tmp_path: Path, body: dict[str, Any]
) -> None:
    async with AsyncExitStack() as stack:
        engines = await fleet(stack, [DIE], [DIE], [DIE])
        config = config_for(tmp_path, *(engine.url for engine in engines))
        one = await stack.enter_async_context(running(config))
        two = await stack.enter_async_context(running(config))
        first = await one.client.post(CHAT, json=body)
        assert sum(len(engine.asked()) for engine in engines) == 2
        refused = [await worker.client.post(CHAT, json=body) for worker in (two, one)]
        shown = (await one.client.get("/metrics")).text
        assert sum(len(engine.asked()) for engine in engines) == 2
        turns = await one.settled(3)
    assert (first.status_code, first.json()["error"]["code"]) == (502, "upstream_closed")
    for got in refused:
        assert (got.status_code, got.json()["error"]["code"]) == (400, "request_kills_engines")
        assert got.json()["error"]["type"] == "invalid_request_error"
    assert [reply.meta["outcome"] for _, reply in turns].count("rejected") == 2
    assert 'code="request_kills_engines"} 1' in shown
    assert [line[-2:] for line in shown.splitlines() if line.startswith("dukou_bodies_at_deaths")] == [" 2"]


async def test_who_was_only_beside_it_is_answered_and_not_accused(tmp_path: Path) -> None:
    """All were there when the first engine died; the one that kills is alone when it kills the second."""
    arrived = asyncio.Event()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(FakeUpstream([Wait(arrived), DIE]))
        others = [await stack.enter_async_context(FakeUpstream(OK, killed_by=b"poison")) for _ in range(2)]
        gw = await stack.enter_async_context(running(config_for(tmp_path, first.url)))
        names = ["poison", *(f"innocent {number}" for number in range(8))]
        asking = {name: asyncio.create_task(gw.client.post(CHAT, json=ask(name))) for name in names}
        await first.arrived(len(names))
        route(tmp_path, *({"url": engine.url, "state": "ready"} for engine in (first, *others)))
        await asyncio.sleep(0.06)  # longer than a look at the routes file is good for
        arrived.set()
        got = {name: (await task).status_code for name, task in asking.items()}
        once_more = {name: (await gw.client.post(CHAT, json=ask(name))).status_code for name in names}
    assert got == {name: 502 if name == "poison" else 200 for name in names}
    assert once_more == {name: 400 if name == "poison" else 200 for name in names}
    bodies = [asked.body for engine in others for asked in engine.asked()]
    assert sum(b"poison" in body for body in bodies) == 1


def deaths_in(state: Path) -> list[bytes]:
    return (state / "run" / "suspects" / "deaths.jsonl").read_bytes().split()


async def test_a_refusal_is_over_after_ten_minutes(tmp_path: Path) -> None:
    now = 1_000_000.0
    async with AsyncExitStack() as stack:
        engines = await fleet(stack, [DIE], [DIE], OK)
        gw = await stack.enter_async_context(running(config_for(tmp_path, *(e.url for e in engines[:2]))))
        gw.server.config.app.suspects._clock = lambda: now
        assert (await gw.client.post(CHAT, json=ASK)).status_code == 502
        assert (await gw.client.post(CHAT, json=ASK)).status_code == 400
        assert (await gw.client.post(CHAT, json=ask("another"))).status_code == 502
        later = await stack.enter_async_context(running(config_for(tmp_path, engines[2].url)))
        later.server.config.app.suspects._clock = lambda: now
        assert (await later.client.post(CHAT, json=ASK)).status_code == 400
        now += REMEMBERED
        assert (await later.client.post(CHAT, json=ASK)).status_code == 200


async def test_a_stream_that_dies_in_the_middle_is_not_sent_again_and_its_body_is_remembered(
    tmp_path: Path,
) -> None:
    begun: list[Step] = [Send(stream_head() + event(chunk({"content": "a"}))), Sleep(0.05), DIE]
    async with AsyncExitStack() as stack:
        engines = await fleet(stack, begun, begun, begun)
        gw = await stack.enter_async_context(running(config_for(tmp_path, *(e.url for e in engines))))
        cut = [await gw.client.post(CHAT, json=STREAM) for _ in range(2)]
        refused = await gw.client.post(CHAT, json=STREAM)
        asked = sum(len(engine.asked()) for engine in engines)
    assert all(b'"error"' in got.content and DONE not in got.content for got in cut)
    assert (asked, refused.status_code) == (2, 400)


@pytest.mark.parametrize("end", [FIN, RST])
async def test_an_engine_that_lives_is_no_death_and_is_told_to_stop(tmp_path: Path, end: Step) -> None:
    async with AsyncExitStack() as stack:
        careless = await stack.enter_async_context(FakeUpstream([Sleep(0.02), end], paths=TOLD))
        good = await stack.enter_async_context(FakeUpstream(OK))
        gw = await stack.enter_async_context(running(config_for(tmp_path, careless.url, good.url)))
        got = [await gw.client.post(CHAT, json=ASK) for _ in range(3)]
        turns = await gw.settled(3)
    assert [answered.status_code for answered in got] == [200] * 3
    lost = {asked.json["rid"] for asked in careless.asked()}
    assert lost == {asked.json["rid"] for asked in careless.asked("/abort_request")}
    assert lost
    assert {reply.meta["engine"] for _, reply in turns} == {good.url}
    assert not (tmp_path / "run" / "suspects").exists()


async def test_a_kept_connection_that_closes_long_after_the_request_is_not_sent_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.relay.routing.ROUND_TRIP_SECONDS", 0.0)
    async with (
        FakeUpstream([Send(chunked(WHOLE))], [Sleep(0.3), FIN], [Send(chunked(WHOLE))], paths=TOLD) as engine,
        running(config_for(tmp_path, engine.url)) as gw,
    ):
        assert (await gw.client.post(CHAT, json=STREAM)).status_code == 200
        got = await gw.client.post(CHAT, json=STREAM)
        turns = await gw.settled(2)
    assert (got.status_code, got.json()["error"]["code"]) == (502, "upstream_closed")
    assert len(engine.asked()) == 2
    assert [asked.json for asked in engine.asked("/abort_request")] == [{"rid": turns[1][0].meta["id"]}]


async def test_a_kept_connection_that_closes_as_the_request_is_written_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.relay.routing.ROUND_TRIP_SECONDS", 60.0)
    async with (
        FakeUpstream([Send(chunked(WHOLE))], [FIN], [Send(chunked(WHOLE))]) as engine,
        running(config_for(tmp_path, engine.url)) as gw,
    ):
        got = [await gw.client.post(CHAT, json=STREAM) for _ in range(2)]
        await gw.settled(2)
    assert [answered.status_code for answered in got] == [200, 200]
    assert [len(engine.asked()), len(engine.asked("/abort_request"))] == [3, 0]


async def test_a_kept_connection_that_closes_because_its_engine_dies_is_a_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.relay.routing.ROUND_TRIP_SECONDS", 60.0)
    async with (
        FakeUpstream(OK, [DIE]) as engine,
        running(config_for(tmp_path, engine.url)) as gw,
    ):
        assert (await gw.client.post(CHAT, json=ask("other"))).status_code == 200
        got = await gw.client.post(CHAT, json=ASK)
    assert (got.status_code, got.json()["error"]["code"]) == (502, "upstream_closed")
    assert [json.loads(line)["engine"] for line in deaths_in(tmp_path)] == [engine.url]
