"""A real worker on a real socket, in the test's own event loop, and a look into its spool."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from dukou.settings.model import Config
from dukou.settings.serving import Engine, Gateway
from gateway.relay import app
from gateway.spool.format import Kind, Record, decode

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM: dict[str, Any] = {**ASK, "stream": True}


@dataclass(slots=True)
class Running:
    url: str
    state: Path
    client: httpx.AsyncClient
    server: Any

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def turns(self) -> list[tuple[Record, Record | None]]:
        """Every recorded request with its reply, in order."""
        return recorded(self.state / "spool")

    async def in_flight(self, count: int) -> None:
        """Waits until `count` requests are being served."""
        for _ in range(1000):
            if len(self.server.config.app.health.turns) >= count:
                return
            await asyncio.sleep(0.005)
        raise AssertionError(f"{count} requests are not in flight")

    async def turn(self) -> tuple[Record, Record]:
        """The only turn, once its reply is recorded."""
        (turn,) = await self.settled(1)
        return turn

    async def settled(self, count: int) -> list[tuple[Record, Record]]:
        """`count` turns, once all of them have a reply and none is running."""
        for _ in range(1000):
            if len(self.turns()) >= count and not self.server.config.app.health.turns:
                break
            await asyncio.sleep(0.01)
        turns = [(request, reply) for request, reply in self.turns() if reply is not None]
        assert len(turns) == len(self.turns()) == count
        return turns


def recorded(spool: Path) -> list[tuple[Record, Record | None]]:
    requests: dict[str, Record] = {}
    replies: dict[str, Record] = {}
    for path in sorted(spool.glob("*.seg"), key=lambda path: int(path.stem.rpartition("-")[2])):
        data, offset = path.read_bytes(), 0
        while offset < len(data):
            read = decode(data, offset)
            assert read is not None, "a torn record"
            record, offset = read
            kept = requests if record.kind is Kind.REQUEST else replies
            assert record.meta["id"] not in kept, "recorded twice"
            kept[record.meta["id"]] = record
    return [(request, replies.get(turn_id)) for turn_id, request in requests.items()]


def config_for(state: Path, *urls: str, **gateway: Any) -> Config:
    """A worker's settings: one or more engines that serve `m`."""
    return Config(
        state_dir=state,
        engine=Engine(urls=list(urls), served_name="m"),
        gateway=Gateway(**{"keys": [], **gateway}),
    )


def route(state: Path, *engines: dict[str, Any]) -> None:
    """Says what the reconciler would say."""
    (state / "run").mkdir(exist_ok=True)
    draft = state / "run" / "draft"
    draft.write_text(json.dumps({"engines": list(engines)}))
    draft.rename(state / "run" / "routes.json")


@asynccontextmanager
async def running(config: Config) -> AsyncIterator[Running]:
    """A worker that serves `config` until the block ends, and then shuts down as on SIGTERM."""
    sock = app.listen("127.0.0.1", 0)
    url = app.address(sock)
    server = app.server(config)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    while not server.started:
        await asyncio.sleep(0.005)
        assert not task.done(), "the worker did not start"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=10) as client:
            yield Running(url, config.state_dir, client, server)
    finally:
        server.should_exit = True
        await task
