"""Workers and turns hear how each engine reads tool calls."""

import json
from pathlib import Path

import orjson
import pytest

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
