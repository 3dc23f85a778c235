"""Clients that leave, stall, or are still there when the server stops: every turn is recorded once."""

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

from gateway.spool.format import Record
from tests.fakes.gateway import ASK, CHAT, STREAM, Running, config_for, running
from tests.fakes.upstream import DONE, HANG, FakeUpstream, Send, Wait, answer, chunk, event, stream_head

pytestmark = pytest.mark.anyio

ABORTED: dict[str, list[Send]] = {"/abort_request": [Send(answer(200, {}))]}
START = Send(stream_head() + event(chunk({"content": "one"})))


async def leave_after_first_byte(gw: Running, ask: dict[str, object]) -> None:
    async with gw.client.stream("POST", CHAT, json=ask) as response:
        async for _ in response.aiter_raw():
            break


async def open_request(gw: Running, ask: dict[str, object]) -> asyncio.StreamWriter:
    body = json.dumps(ask).encode()
    _, writer = await asyncio.open_connection("127.0.0.1", gw.port, limit=1024)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    return writer


def outcomes(turns: list[tuple[Record, Record]]) -> list[str]:
    return [reply.meta["outcome"] for _, reply in turns]


async def test_a_client_that_leaves_a_stream_stops_the_engine_and_is_recorded(tmp_path: Path) -> None:
    """S12."""
    async with FakeUpstream([START, HANG]) as engine, running(config_for(tmp_path, engine.url)) as gw:
        await leave_after_first_byte(gw, STREAM)
        await engine.asked()[0].peer_closed.wait()
        request, reply = await gw.turn()
    assert reply.meta["outcome"] == "client_disconnect"
    assert b"one" in reply.body
    assert engine.asked("/abort_request")[0].json == {"rid": request.meta["id"]}


async def test_what_the_engine_says_after_the_abort_is_recorded(tmp_path: Path) -> None:
    told = asyncio.Event()
    ids = event({"choices": [], "sglext": {"output_ids": [[1, 2]]}})
    rest = event(chunk({}, "abort")) + ids + DONE

    async def tell() -> None:
        await engine.arrived(path="/abort_request")
        told.set()

    async with (
        FakeUpstream([START, Wait(told), Send(rest), HANG], paths={**ABORTED}) as engine,
        running(config_for(tmp_path, engine.url)) as gw,
    ):
        await leave_after_first_byte(gw, STREAM)
        await tell()
        _, reply = await gw.turn()
    assert reply.meta["outcome"] == "client_disconnect"
    assert reply.body.endswith(rest)


async def test_a_client_that_leaves_a_whole_answer_stops_the_engine(tmp_path: Path) -> None:
    """S13."""
    async with FakeUpstream([HANG]) as engine, running(config_for(tmp_path, engine.url)) as gw:
        writer = await open_request(gw, ASK)
        await engine.arrived()
        writer.close()
        await engine.asked()[0].peer_closed.wait()
        _, reply = await gw.turn()
    assert reply.meta["outcome"] == "client_disconnect"
    assert reply.meta["http_status"] is None


async def test_many_clients_that_leave_at_any_moment_are_each_recorded_once(tmp_path: Path) -> None:
    """S12, S25."""
    steps = [START, *(Send(event(chunk({"content": str(i)}))) for i in range(50)), HANG]
    async with FakeUpstream(steps) as engine, running(config_for(tmp_path, engine.url)) as gw:
        writers = await asyncio.gather(*(open_request(gw, STREAM) for _ in range(40)))
        await engine.arrived(40)
        for writer in writers:
            writer.close()
            await asyncio.sleep(0)
        turns = await gw.settled(40)
    assert outcomes(turns) == ["client_disconnect"] * 40


async def test_a_stalled_client_is_cut_off_and_the_engine_is_not_read_without_bound(tmp_path: Path) -> None:
    """S23."""
    big = Send(event(chunk({"content": "x" * 65536})))
    steps = [Send(stream_head()), *[big] * 1000, HANG]
    async with (
        FakeUpstream(steps) as engine,
        running(config_for(tmp_path, engine.url, write_timeout=0.2)) as gw,
    ):
        writer = await open_request(gw, STREAM)
        writer.transport.pause_reading()
        _, reply = await gw.turn()
        writer.close()
    assert reply.meta["outcome"] == "client_disconnect"
    assert "did not read" in reply.meta["error"]
    assert len(engine.asked()[0].sent_at) < 1000
    assert len(reply.body) < 40 * 2**20


async def test_streams_open_at_shutdown_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S25."""
    monkeypatch.setattr("gateway.relay.app.GRACE_SECONDS", 0.1)
    async with FakeUpstream([START, HANG]) as engine:
        async with running(config_for(tmp_path, engine.url)) as gw:
            writers = [await open_request(gw, STREAM) for _ in range(10)]
            await engine.arrived(10)
        turns = gw.turns()
        for writer in writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
    assert [reply is not None and reply.meta["outcome"] for _, reply in turns] == ["client_disconnect"] * 10


async def test_the_turn_is_on_disk_before_the_client_has_its_last_byte(tmp_path: Path) -> None:
    whole = event(chunk({"content": "a"})) + event(chunk({}, "stop")) + DONE
    async with (
        FakeUpstream([Send(stream_head() + whole), HANG]) as engine,
        running(config_for(tmp_path, engine.url)) as gw,
        gw.client.stream("POST", CHAT, json=STREAM) as response,
    ):
        seen = b""
        async for part in response.aiter_raw():
            seen += part
            if DONE in seen:
                assert [reply is not None for _, reply in gw.turns()] == [True]
    assert DONE in seen
