"""Workers and turns hear how each engine reads tool calls."""

import json
from pathlib import Path

import orjson
import pytest

from gateway.reconcile.control import Control, Health
from gateway.reconcile.tool_calling import ToolCallings
from tests.fakes.gateway import ASK, CHAT, running
from tests.fakes.sglang import FakeSGLang
from tests.fakes.upstream import FakeUpstream, Send, answer
from tests.fakes.world import World
from tests.integration.test_gateway_edge import config_for

QWEN = {"parser": "qwen", "grammar": "xgrammar"}


def told(world: World) -> object:
    (engine,) = orjson.loads(world.routes_file.read_bytes())["engines"]
    return engine["tool_calling"]


def test_the_routes_file_says_how_an_engine_reads_tool_calls_and_asks_once_a_life(
    world: World, fake: FakeSGLang
) -> None:
    world.tick()
    assert told(world) == QWEN
    asked = [call.path for call in fake.calls].count("/server_info")
    for _ in range(3):
        world.tick()
    assert told(world) == QWEN
    assert [call.path for call in fake.calls].count("/server_info") == asked
    fake.die()
    world.tick()
    assert told(world) is None
    fake.parser = "hermes"
    fake.restart()
    for _ in range(3):
        world.tick()
    assert told(world) == {"parser": "hermes", "grammar": "xgrammar"}


def test_an_engine_that_cannot_say_is_unknown_and_asked_again_later(fake: FakeSGLang) -> None:
    now = [0.0]
    callings = ToolCallings(lambda: now[0])
    fake.replies["/server_info"] = [(500, {}), (200, {"tool_call_parser": None})]
    with Control(fake.url) as control:
        for now[0] in (0.0, 9.0):
            callings.look(control, Health.READY, "sglang")
            assert callings.known() == {}
        for dialect in ("plain", None):
            callings.look(control, Health.READY, dialect)
        now[0] = 10.0
        callings.look(control, Health.READY, "sglang")
    assert callings.known() == {fake.url: {"parser": None, "grammar": None}}
    assert len(fake.calls) == 2


@pytest.mark.anyio
@pytest.mark.parametrize("known", [QWEN, None])
async def test_a_turns_reply_record_says_how_its_engine_reads_tool_calls(
    tmp_path: Path, known: dict[str, str] | None
) -> None:
    reply = {"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}]}
    async with (
        FakeUpstream([Send(answer(200, reply))]) as engine,
        running(config_for(tmp_path, engine.url)) as gateway,
    ):
        (tmp_path / "run").mkdir(exist_ok=True)
        entry = {"url": engine.url, "state": "ready", "tool_calling": known}
        (tmp_path / "run" / "routes.json").write_text(json.dumps({"engines": [entry]}))
        await gateway.client.post(CHAT, json=ASK)
        _, recorded = await gateway.turn()
    assert recorded.meta["tool_calling"] == known
