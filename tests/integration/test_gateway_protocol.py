"""Reports from the field about proxies, each against a scripted engine: what passes, waits, or is held."""

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import openai
import pytest
from sqlalchemy import Engine

from tests.fakes.ferry import Ferry
from tests.fakes.gateway import ASK, CHAT, STREAM, config_for, route, running
from tests.fakes.upstream import (
    DONE,
    HANG,
    FakeUpstream,
    Send,
    Sleep,
    Wait,
    answer,
    chunk,
    chunked,
    event,
    stream_head,
)

pytestmark = pytest.mark.anyio

REPLY = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "yo"}, "finish_reason": "stop"}],
}
OK = [Send(answer(200, REPLY))]
CAPTURED = {
    **REPLY,
    "choices": [
        {
            **REPLY["choices"][0],
            "prompt_token_ids": [1],
            "response_token_ids": [2],
            "meta_info": {"output_token_logprobs": [[-0.1, 2, None]], "weight_version": "3"},
        }
    ],
}
CHATTY = {
    "model": "m",
    "messages": [
        {"role": "user", "content": "hi", "id": 17, "metadata": {"_db": "x"}, "agent": "cli"},
        {"role": "assistant", "content": "yo", "reasoning": "r", "traceId": "t"},
        {"role": "user", "content": [{"type": "text", "text": "ok", "cache_control": {"type": "ephemeral"}}]},
    ],
    "store": False,
    "metadata": {"k": "v"},
    "client_metadata": {"s": 1},
    "parallel_tool_calls": True,
    "prompt_cache_key": "p",
    "service_tier": "auto",
    "verbosity": "low",
}


async def test_fields_that_nobody_knows_pass_and_the_body_is_recorded_as_it_came(tmp_path: Path) -> None:
    """P4."""
    raw = json.dumps(CHATTY, indent=1).encode()
    async with FakeUpstream(OK) as engine, running(config_for(tmp_path, engine.url)) as gw:
        got = await gw.client.post(CHAT, content=raw)
        request, _ = await gw.turn()
    assert got.status_code == 200
    assert request.body == raw
    assert CHATTY.items() <= engine.asked()[0].json.items()


@pytest.mark.parametrize(
    ("code", "type_", "shown"),
    [
        (400, "invalid_request_error", 400),
        (401, "upstream_error", 401),
        (429, "rate_limit_error", 429),
        (500, "server_error", 500),
        (503, "service_unavailable", 503),
    ],
)
async def test_an_error_frame_names_its_type_by_its_code(
    tmp_path: Path, code: int, type_: str, shown: int
) -> None:
    """P3: a refusal of Dukou's own key is no fault of the client's."""
    frames = [event(chunk({"content": "a"})), event({"error": {"message": "no", "code": code}}), DONE]
    async with (
        FakeUpstream([Send(chunked(*frames))]) as engine,
        running(config_for(tmp_path, engine.url)) as gw,
    ):
        got = await gw.client.post(CHAT, json=STREAM)
    error = json.loads(got.content.rstrip().rpartition(b"data: ")[2])["error"]
    assert (error["type"], error["code"]) == (type_, shown)


async def test_every_token_is_with_the_client_before_the_engine_makes_the_next(tmp_path: Path) -> None:
    """S15."""
    read = [asyncio.Event() for _ in range(4)]
    steps: list[Any] = [Send(stream_head())]
    for number, was_read in enumerate(read):
        steps += [Send(event(chunk({"content": str(number)}))), Wait(was_read)]
    steps += [Send(event(chunk({}, "stop")) + DONE), HANG]
    seen = b""
    async with (
        FakeUpstream(steps) as engine,
        running(config_for(tmp_path, engine.url)) as gw,
        gw.client.stream("POST", CHAT, json=STREAM, headers={"accept-encoding": "gzip, br"}) as response,
    ):
        assert "content-encoding" not in response.headers
        async for part in response.aiter_raw():
            seen += part
            for number, was_read in enumerate(read):
                if f'"content": "{number}"'.encode() in seen:
                    was_read.set()
    assert all(was_read.is_set() for was_read in read)
    assert seen.endswith(DONE)


async def test_a_stream_may_last_longer_than_the_silence_that_is_allowed(tmp_path: Path) -> None:
    """P18: the limit is on silence, not on the whole."""
    steps: list[Any] = [Sleep(0.2), Send(stream_head())]
    for _ in range(4):
        steps += [Send(event(chunk({"content": "a"}))), Sleep(0.2)]
    steps += [Send(event(chunk({}, "stop")) + DONE), HANG]
    async with (
        FakeUpstream(steps) as engine,
        running(config_for(tmp_path, engine.url, idle_timeout=0.9)) as gw,
    ):
        got = await gw.client.post(CHAT, json=STREAM)
    assert got.content.endswith(DONE)


async def test_a_client_that_leaves_as_the_answer_comes_leaves_one_whole_turn(tmp_path: Path) -> None:
    """S13."""
    async with FakeUpstream(OK) as engine, running(config_for(tmp_path, engine.url)) as gw:
        for number in range(1, 21):
            _, writer = await asyncio.open_connection("127.0.0.1", gw.port)
            body = json.dumps(ASK).encode()
            writer.write(
                f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
            )
            await engine.arrived(number)
            writer.close()
        turns = await gw.settled(20)
    assert {reply.meta["outcome"] for _, reply in turns} <= {"ok", "client_disconnect"}
    assert all(json.loads(reply.body) == REPLY for _, reply in turns if reply.meta["outcome"] == "ok")


def plain(url: str) -> dict[str, Any]:
    """An engine that takes nothing for sampling fields which a request leaves out."""
    return {"url": url, "state": "ready", "sampling_defaults": {}}


class Impatient(openai.AsyncOpenAI):
    """The openai client, without its pause before another attempt."""

    def _calculate_retry_timeout(self, *_: object, **__: object) -> float:
        return 0.0


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "once"}])
async def test_attempts_of_one_request_are_one_conversation_with_one_turn_to_train(
    tmp_path: Path, db: Engine, headers: dict[str, str]
) -> None:
    """P19, with the openai client's own retries."""
    paths = {"/abort_request": [Send(answer(404, {}))]}
    async with (
        FakeUpstream([HANG], [HANG], [Send(answer(200, CAPTURED))], paths=paths) as engine,
        running(config_for(tmp_path, engine.url)) as gw,
        Impatient(base_url=f"{gw.url}/v1", api_key="k", timeout=0.3, max_retries=2) as client,
    ):
        route(tmp_path, plain(engine.url))
        got = await client.chat.completions.create(**ASK, extra_headers=headers)
        turns = await gw.settled(3)
    assert got.choices[0].message.content == "yo"
    assert [request.meta["headers"]["x-stainless-retry-count"] for request, _ in turns] == ["0", "1", "2"]
    assert all(asked.peer_closed.is_set() for asked in engine.asked()[:2])
    ferry = Ferry(tmp_path, db)
    ferry.clock = turns[-1][0].meta["at_ns"] / 1e9 + 10
    await asyncio.to_thread(ferry.give_up_waiting)
    first, second, third = ferry.rows()
    assert [row.status for row in (first, second, third)] == ["client_disconnect", "client_disconnect", "ok"]
    assert (second.retry_of, third.retry_of) == (first.id, second.id)
    assert [row.trainable for row in (first, second, third)] == [False, False, True]
    assert len({row.session_id for row in (first, second, third)}) == 1


async def test_a_repeat_after_success_is_a_duplicate(tmp_path: Path, db: Engine) -> None:
    """P19: the answer was lost on its way, so the repeat is what the client has."""
    async with (
        FakeUpstream([Send(answer(200, CAPTURED))]) as engine,
        running(config_for(tmp_path, engine.url)) as gw,
    ):
        route(tmp_path, plain(engine.url))
        for _ in range(2):
            await gw.client.post(CHAT, json=ASK, headers={"Idempotency-Key": "once"})
        turns = await gw.settled(2)
    ferry = Ferry(tmp_path, db)
    ferry.clock = turns[-1][0].meta["at_ns"] / 1e9 + 10
    await asyncio.to_thread(ferry.give_up_waiting)
    first, second = ferry.rows()
    assert second.retry_of == first.id
    assert ferry.state(first.id)[:2] == ("dropped", "retry")


@pytest.mark.parametrize("prompt", ["a", ["a", "b"], [1, 2], [[1, 2], [3]]])
async def test_prompts_of_completions_are_recorded_as_given(
    tmp_path: Path, db: Engine, prompt: object
) -> None:
    """P22."""
    reply = {"id": "x", "choices": [{"index": 0, "text": "b", "token_ids": [4], "finish_reason": "stop"}]}
    ask = {"model": "m", "prompt": prompt, "echo": True}
    async with (
        FakeUpstream([Send(answer(200, reply))]) as engine,
        running(config_for(tmp_path, engine.url)) as gw,
    ):
        got = await gw.client.post("/v1/completions", json=ask)
        request, _ = await gw.turn()
    assert got.json()["choices"][0]["text"] == "b"
    assert engine.asked("/v1/completions")[0].json.items() >= ask.items()
    ferry = Ferry(tmp_path, db)
    ferry.drain()
    row = ferry.row(UUID(request.meta["id"]))
    assert json.loads(request.body) == ask
    assert (row.response_ids, row.untrainable_reason) == ([4], "endpoint")


async def test_embeddings_pass_and_are_a_turn_on_the_side(tmp_path: Path) -> None:
    """P22."""
    reply = {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
        "model": "m",
    }
    paths = {"/v1/embeddings": [Send(answer(200, reply))]}
    async with FakeUpstream(OK, paths=paths) as engine, running(config_for(tmp_path, engine.url)) as gw:
        got = await gw.client.post("/v1/embeddings", json={"model": "m", "input": "x"})
        request, kept = await gw.turn()
    assert got.json() == reply
    assert engine.requests[0].json == {"model": "m", "input": "x"}
    assert (request.meta["path"], kept.meta["outcome"]) == ("/v1/embeddings", "ok")


@pytest.mark.parametrize("wait", ["12", "Wed, 21 Oct 2026 07:28:00 GMT"])
@pytest.mark.parametrize("status", [429, 503])
async def test_how_long_to_wait_is_passed_on(tmp_path: Path, status: int, wait: str) -> None:
    """P23."""
    refusal = answer(status, {"error": {"message": "later"}}, {"retry-after": wait})
    async with FakeUpstream([Send(refusal)]) as engine, running(config_for(tmp_path, engine.url)) as gw:
        got = await gw.client.post(CHAT, json=STREAM)
    assert (got.status_code, got.headers["retry-after"]) == (status, wait)


async def test_a_body_with_a_large_picture_passes_whole(tmp_path: Path) -> None:
    """P24."""
    picture = "data:image/png;base64," + "A" * (12 * 2**20)
    parts = [{"type": "image_url", "image_url": {"url": picture}}]
    ask = {"model": "m", "messages": [{"role": "user", "content": parts}]}
    async with FakeUpstream(OK) as engine, running(config_for(tmp_path, engine.url)) as gw:
        got = await gw.client.post(CHAT, json=ask)
        request, _ = await gw.turn()
    assert got.status_code == 200
    assert engine.asked()[0].json["messages"] == ask["messages"]
    assert json.loads(request.body) == ask
