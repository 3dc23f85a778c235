"""Engines that change their weights, or speak another dialect: who is held, who is refused, what is asked."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gateway import ASK, CHAT, STREAM, config_for, route, running
from tests.fakes.upstream import DONE, FIN, HANG, FakeUpstream, Send, Wait, answer, chunk, event, stream_head

pytestmark = pytest.mark.anyio

OK = [Send(answer(200, {"choices": [{"index": 0, "message": {"content": "yo"}, "finish_reason": "stop"}]}))]


async def test_while_weights_change_requests_are_held_up_to_a_bound_and_then_told_to_come_back(
    tmp_path: Path,
) -> None:
    """P23."""
    async with FakeUpstream(OK) as engine, running(config_for(tmp_path, engine.url, max_held=2)) as gw:
        entry = {"url": engine.url, "version_low": 3, "version_high": 4, "adapter": None}
        route(tmp_path, entry | {"state": "updating"})
        held = [asyncio.create_task(gw.client.post(CHAT, json=ASK)) for _ in range(2)]
        await gw.in_flight(2)
        refused = await gw.client.post(CHAT, json=ASK)
        route(tmp_path, entry | {"state": "ready", "version_low": 4})
        answered = await asyncio.gather(*held)
        turns = await gw.settled(3)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert [got.status_code for got in answered] == [200, 200]
    assert sorted(reply.meta["outcome"] for _, reply in turns) == ["ok", "ok", "rejected"]


async def test_a_client_that_leaves_while_it_is_held_makes_room(tmp_path: Path) -> None:
    async with FakeUpstream(OK) as engine, running(config_for(tmp_path, engine.url, max_held=1)) as gw:
        route(tmp_path, {"url": engine.url, "state": "updating"})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await gw.client.post(CHAT, json=ASK)
        await gw.settled(1)
        again = asyncio.create_task(gw.client.post(CHAT, json=ASK))
        await gw.in_flight(1)
        route(tmp_path, {"url": engine.url, "state": "ready"})
        assert (await again).status_code == 200
    assert len(engine.asked()) == 1


async def test_a_stream_over_a_weight_change_says_both_versions(tmp_path: Path) -> None:
    """K16: no chunk of a stream tells which weights made it."""
    changed = asyncio.Event()
    steps = [Send(stream_head() + event(chunk({"content": "a"}))), Wait(changed)]
    steps += [Send(event(chunk({}, "stop")) + DONE), HANG]
    async with FakeUpstream(steps) as engine, running(config_for(tmp_path, engine.url)) as gw:
        entry = {"url": engine.url, "state": "ready", "version_low": 3, "version_high": 3}
        route(tmp_path, entry)
        async with gw.client.stream("POST", CHAT, json=STREAM) as response:
            assert response.headers["x-policy-version"] == "3"
            route(tmp_path, entry | {"version_low": 4, "version_high": 4})
            await asyncio.sleep(0.06)  # longer than a look at the routes file is good for
            changed.set()
            await response.aread()
        _, reply = await gw.turn()
    assert (reply.meta["version_min"], reply.meta["version_max"]) == (3, 4)


async def test_a_turn_says_what_the_engine_that_answered_takes_for_left_out_fields(tmp_path: Path) -> None:
    """K15: not what the one takes that was asked first and could not be reached."""
    async with (
        FakeUpstream([FIN]) as first,
        FakeUpstream(OK) as second,
        running(config_for(tmp_path, first.url, second.url)) as gw,
    ):
        one: dict[str, Any] = {"url": first.url, "state": "ready", "sampling_defaults": {}}
        other: dict[str, Any] = {"url": second.url, "state": "ready"}
        route(tmp_path, one, other | {"sampling_defaults": {"temperature": 0.6}})
        assert (await gw.client.post(CHAT, json=ASK)).status_code == 200
        _, reply = await gw.turn()
        route(tmp_path, other)
        await asyncio.sleep(0.06)  # longer than a look at the routes file is good for
        await gw.client.post(CHAT, json=ASK)
        _, (_, later) = await gw.settled(2)
    assert len(first.asked()) == 1
    assert (reply.meta["engine"], reply.meta["sampling_defaults"]) == (second.url, {"temperature": 0.6})
    assert later.meta["sampling_defaults"] is None


async def test_readiness_names_each_engines_dialect_and_what_it_lacks(tmp_path: Path) -> None:
    """K10, K11."""
    lacks = "its streams lack log-probabilities: start SGLang with --tool-call-parser"
    async with FakeUpstream(OK) as engine, running(config_for(tmp_path, engine.url)) as gw:
        route(tmp_path, {"url": engine.url, "state": "ready", "dialect": "sglang", "reason": lacks})
        ready = await gw.client.get("/readyz")
        health = (await gw.client.get("/healthz")).json()
    assert ready.status_code == 200
    assert ready.json()["engines"] == [
        {"url": engine.url, "state": "ready", "dialect": "sglang", "reason": lacks}
    ]
    assert (health["status"], health["warnings"]) == ("degraded", [f"{engine.url}: {lacks}"])


async def test_an_engine_is_asked_in_its_dialect(tmp_path: Path) -> None:
    """K11."""
    async with FakeUpstream(OK) as engine, running(config_for(tmp_path, engine.url)) as gw:
        for dialect in ("vllm", "plain"):
            route(tmp_path, {"url": engine.url, "state": "ready", "dialect": dialect})
            await asyncio.sleep(0.06)
            assert (await gw.client.post(CHAT, json=ASK)).status_code == 200
    asked_vllm, asked_plain = (asked.json for asked in engine.asked())
    assert asked_vllm == {**ASK, "return_token_ids": True, "logprobs": True}
    assert asked_plain == ASK
