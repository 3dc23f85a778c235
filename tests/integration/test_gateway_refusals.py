"""What a worker gives to no engine, and where it lets private fields pass."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from dukou.settings.model import Config
from tests.fakes.gateway import ASK, CHAT, config_for, route, running
from tests.fakes.upstream import FakeUpstream, Send, answer

pytestmark = pytest.mark.anyio

OK = [Send(answer(200, {"choices": [{"index": 0, "message": {"content": "yo"}, "finish_reason": "stop"}]}))]
KEY = {"authorization": "Bearer secret"}


def config(state: Path, url: str, private_fields: str = "refuse", **gateway: Any) -> Config:
    made = config_for(state, url, **gateway)
    engine = made.engine.model_copy(update={"private_fields": private_fields})
    return made.model_copy(update={"engine": engine})


@pytest.mark.parametrize(
    ("gateway", "private_fields", "status"),
    [
        ({"keys": [SecretStr("secret")]}, "refuse", 400),
        ({"host": "0.0.0.0"}, "refuse", 400),
        ({"keys": [SecretStr("secret")]}, "pass", 200),
        ({"host": "0.0.0.0"}, "pass", 200),
        ({}, "refuse", 200),
        ({"host": "localhost"}, "refuse", 200),
    ],
)
async def test_private_fields_are_refused_where_others_can_ask(
    tmp_path: Path, gateway: dict[str, Any], private_fields: str, status: int
) -> None:
    async with (
        FakeUpstream(OK) as engine,
        running(config(tmp_path, engine.url, private_fields, **gateway)) as gw,
    ):
        ask = {**ASK, "input_ids": [1, 2], "bootstrap_host": "elsewhere"}
        got = await gw.client.post(CHAT, json=ask, headers=KEY)
        fine = await gw.client.post(CHAT, json={**ASK, "top_k": 3, "input_ids": None}, headers=KEY)
        (_, reply), _ = await gw.settled(2)
        shown = (await gw.client.get("/metrics")).text
    assert (got.status_code, fine.status_code) == (status, 200)
    assert len(engine.asked()) == (2 if status == 200 else 1)
    if status == 400:
        error = got.json()["error"]
        assert (error["code"], error["param"]) == ("private_field", "input_ids")
        assert error["type"] == "invalid_request_error"
        assert reply.meta["outcome"] == "rejected"
        assert 'code="private_field"} 1' in shown
    else:
        assert engine.asked()[0].json["input_ids"] == [1, 2]


async def test_ids_beyond_the_smallest_vocabulary_reach_no_engine(tmp_path: Path) -> None:
    completions = {"/v1/completions": OK, "/v1/detokenize": OK}
    async with FakeUpstream(OK, paths=completions) as engine, running(config(tmp_path, engine.url)) as gw:
        entry = {"url": engine.url, "state": "ready"}

        async def statuses() -> list[int]:
            asked = [
                (CHAT, {**ASK, "logit_bias": {"49152": 1}}),
                ("/v1/completions", {"model": "m", "prompt": [1, 49152]}),
                ("/v1/detokenize", {"model": "m", "tokens": [49152]}),
                (CHAT, {**ASK, "stop_token_ids": [49151]}),
            ]
            return [(await gw.client.post(path, json=body)).status_code for path, body in asked]

        route(
            tmp_path, {**entry, "vocab_size": 49152}, {**entry, "url": "http://127.0.0.1:9", "state": "dead"}
        )
        known = await statuses()
        (tmp_path / "run" / "routes.json").unlink()
        route(tmp_path, entry)
        gw.server.config.app.health._router._look_at = float("-inf")
        unknown = await statuses()
    assert known == [400, 400, 400, 200]
    assert unknown == [200] * 4


async def test_absurd_numbers_of_answers_reach_no_engine(tmp_path: Path) -> None:
    async with FakeUpstream(OK) as engine, running(config(tmp_path, engine.url)) as gw:
        many = await gw.client.post(CHAT, json={**ASK, "n": 129})
        most = await gw.client.post(CHAT, json={**ASK, "n": 128})
    assert (many.status_code, many.json()["error"]["param"], most.status_code) == (400, "n", 200)
    assert len(engine.asked()) == 1
