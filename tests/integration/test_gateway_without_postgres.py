"""D10: streams hold no connection to Postgres, for the request path has none."""

import asyncio
import socket
from pathlib import Path

from pydantic import SecretStr

from dukou.settings.serving import Database
from tests.fakes.gateway import ASK, CHAT, STREAM, config_for, running
from tests.fakes.upstream import DONE, FIN, FakeUpstream, Send, Wait, answer, chunk, event, stream_head

STREAMS = 60  # fewer than the connections of one httpx client


async def test_open_streams_keep_nobody_waiting_and_ask_postgres_nothing(tmp_path: Path) -> None:
    go_on = asyncio.Event()
    begin = Send(stream_head() + event(chunk({"content": "x"})))
    held = [begin, Wait(go_on), Send(event(chunk({}, "stop")) + DONE), FIN]
    whole = {"choices": [{"index": 0, "message": {"content": "y"}, "finish_reason": "stop"}]}
    with socket.create_server(("127.0.0.1", 0)) as postgres:
        postgres.setblocking(False)
        url = SecretStr(f"postgresql://u@127.0.0.1:{postgres.getsockname()[1]}/d")
        async with FakeUpstream(*[held] * STREAMS, [Send(answer(200, whole))]) as engine:
            config = config_for(tmp_path, engine.url).model_copy(update={"database": Database(url=url)})
            async with running(config) as gw:
                streams = [asyncio.create_task(gw.client.post(CHAT, json=STREAM)) for _ in range(STREAMS)]
                await engine.arrived(STREAMS)
                assert (await gw.client.get("/healthz")).status_code == 200
                assert (await gw.client.post(CHAT, json=ASK)).status_code == 200
                go_on.set()
                replies = await asyncio.gather(*streams)
                await gw.settled(STREAMS + 1)
        assert all(reply.text.endswith("data: [DONE]\n\n") for reply in replies)
        try:
            postgres.accept()
        except BlockingIOError:
            return
    raise AssertionError("the request path connected to Postgres")
