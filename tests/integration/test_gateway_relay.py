"""The relay against a scripted engine: what the client gets, what the engine is asked, what is recorded."""

import json
from pathlib import Path

import openai
import pytest

from tests.fakes.gateway import ASK, CHAT, STREAM, config_for, running
from tests.fakes.upstream import (
    DONE,
    FIN,
    RST,
    FakeUpstream,
    Send,
    Sleep,
    answer,
    chunk,
    chunked,
    event,
    stream_head,
)

pytestmark = pytest.mark.anyio

LOGPROBS = {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]}
FRAMES = [
    event(chunk({"role": "assistant", "content": ""})),
    event(chunk({"content": "alpha"}, logprobs=LOGPROBS)),
    event(chunk({"content": " 那🚀"}, logprobs=LOGPROBS)),
    event(chunk({}, "stop")),
]
IDS = event({"id": "c1", "choices": [], "sglext": {"input_ids": [1, 2], "output_ids": [[3, 4]]}})
USAGE = event(
    {"id": "c1", "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}}
)
WHOLE = b"".join((*FRAMES, IDS, USAGE, DONE))
REPLY = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello"},
            "logprobs": LOGPROBS,
            "finish_reason": "stop",
            "prompt_token_ids": [1, 2],
            "response_token_ids": [3],
            "meta_info": {"output_token_logprobs": [[-0.5, 3, None]]},
        }
    ],
    "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3},
}


def texts(sse: bytes) -> str:
    lines = [line[6:] for line in sse.split(b"\n") if line.startswith(b"data: {")]
    return "".join(c["delta"].get("content") or "" for line in lines for c in json.loads(line)["choices"])


async def test_the_openai_client_streams_and_the_turn_is_recorded_whole(tmp_path: Path) -> None:
    async with (
        FakeUpstream([Send(chunked(WHOLE))]) as engine,
        running(config_for(tmp_path, engine.url)) as gw,
    ):
        async with openai.AsyncOpenAI(base_url=f"{gw.url}/v1", api_key="k") as client:
            stream = await client.chat.completions.create(**STREAM)
            chunks = [part async for part in stream]
        request, reply = await gw.turn()
    assert "".join(part.choices[0].delta.content or "" for part in chunks) == "alpha 那🚀"
    assert all(part.choices and part.choices[0].logprobs is None for part in chunks)
    assert reply.body == WHOLE
    assert reply.meta["outcome"] == "ok"
    assert reply.meta["http_status"] == 200
    assert reply.meta["first_byte_ns"] >= request.meta["at_ns"]
    sent = engine.asked()[0].json
    assert sent["rid"] == request.meta["id"]
    assert sent["stream_options"] == {"include_usage": True}
    assert (
        sent["return_output_ids_in_sglext"] is sent["return_input_ids_in_sglext"] is sent["logprobs"] is True
    )
    assert json.loads(request.body)["messages"] == STREAM["messages"]
    assert "rid" not in json.loads(request.body)


async def test_the_openai_client_gets_a_whole_answer_without_dukous_fields(tmp_path: Path) -> None:
    async with (
        FakeUpstream([Send(answer(200, REPLY))]) as engine,
        running(config_for(tmp_path, engine.url)) as gw,
        openai.AsyncOpenAI(base_url=f"{gw.url}/v1", api_key="k") as client,
    ):
        raw = await client.chat.completions.with_raw_response.create(**ASK)
        request, reply = await gw.turn()
    shown = json.loads(raw.content)
    assert shown["choices"][0] == {
        "index": 0,
        "message": {"role": "assistant", "content": "hello"},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert raw.headers["x-turn-id"] == request.meta["id"]
    assert json.loads(reply.body) == REPLY


async def test_fields_that_the_client_asked_for_itself_stay(tmp_path: Path) -> None:
    asked = {**ASK, "logprobs": True, "return_token_ids": True, "return_meta_info": True}
    body = answer(200, REPLY)
    async with FakeUpstream([Send(body)]) as engine, running(config_for(tmp_path, engine.url)) as gw:
        got = await gw.client.post(CHAT, json=asked)
    assert body.endswith(got.content)


@pytest.mark.parametrize("usage", [False, True])
async def test_usage_is_shown_only_where_it_was_asked_for(tmp_path: Path, usage: bool) -> None:
    """S7."""
    asked = {**STREAM, "stream_options": {"include_usage": True}} if usage else STREAM
    async with (
        FakeUpstream([Send(chunked(WHOLE))]) as engine,
        running(config_for(tmp_path, engine.url)) as gw,
    ):
        got = await gw.client.post(CHAT, json=asked)
    assert got.content.count(b'"choices": []') == usage


async def test_a_stream_cut_into_single_bytes_is_the_same(tmp_path: Path) -> None:
    """S1, S2, S15."""
    parts = [Send(stream_head()), *(Send(WHOLE[i : i + 1]) for i in range(len(WHOLE))), FIN]
    async with FakeUpstream(parts) as engine, running(config_for(tmp_path, engine.url)) as gw:
        got = await gw.client.post(CHAT, json=STREAM)
        _, reply = await gw.turn()
    assert texts(got.content) == "alpha 那🚀"
    assert reply.body == WHOLE
    assert got.headers["cache-control"] == "no-cache"
    assert got.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in got.headers


async def test_a_clean_end_in_mid_answer_is_truncated_and_said_so(tmp_path: Path) -> None:
    """S8."""
    steps = [Send(stream_head()), Send(b"".join(FRAMES[:3])), FIN]
    async with FakeUpstream(steps) as engine, running(config_for(tmp_path, engine.url)) as gw:
        got = await gw.client.post(CHAT, json=STREAM)
        _, reply = await gw.turn()
    assert reply.meta["outcome"] == "truncated"
    last = got.content.rstrip().rpartition(b"data: ")[2]
    assert json.loads(last)["error"]["message"]
    assert b"[DONE]" not in got.content
    assert b'"finish_reason": "stop"' not in got.content


async def test_done_is_supplied_after_a_finish_reason(tmp_path: Path) -> None:
    """S8."""
    steps = [Send(stream_head()), Send(b"".join(FRAMES)), FIN]
    async with FakeUpstream(steps) as engine, running(config_for(tmp_path, engine.url)) as gw:
        got = await gw.client.post(CHAT, json=STREAM)
        _, reply = await gw.turn()
    assert reply.meta["outcome"] == "ok"
    assert got.content.endswith(DONE)


async def test_a_stream_without_any_event_is_a_502(tmp_path: Path) -> None:
    """S8."""
    async with (
        FakeUpstream([Send(stream_head()), FIN]) as engine,
        running(config_for(tmp_path, engine.url)) as gw,
    ):
        got = await gw.client.post(CHAT, json=STREAM)
        _, reply = await gw.turn()
    assert got.status_code == 502
    assert got.json()["error"]["type"] == "upstream_error"
    assert reply.meta["outcome"] == "upstream_error"


async def test_a_reset_in_mid_answer_is_an_error_frame_and_the_tokens_are_kept(tmp_path: Path) -> None:
    """S10."""
    steps = [Send(stream_head()), Send(b"".join(FRAMES[:3])), Sleep(0.05), RST]
    async with (
        FakeUpstream(steps, [Send(answer(200, REPLY))]) as engine,
        running(config_for(tmp_path, engine.url)) as gw,
    ):
        got = await gw.client.post(CHAT, json=STREAM)
        follow_up = await gw.client.post(CHAT, json=ASK)
        (_, reply), _ = await gw.settled(2)
    assert texts(got.content.rpartition(b"data: ")[0]) == "alpha 那🚀"
    assert json.loads(got.content.rstrip().rpartition(b"data: ")[2])["error"]["type"] == "upstream_error"
    assert reply.meta["outcome"] == "upstream_error"
    assert reply.meta["error"]
    assert reply.body == b"".join(FRAMES[:3])
    assert follow_up.status_code == 200


async def test_silence_ends_at_the_idle_timeout_with_504(tmp_path: Path) -> None:
    """S10, P2, P18."""
    config = config_for(tmp_path, "http://127.0.0.1:1", idle_timeout=0.1)
    async with FakeUpstream([Sleep(30)]) as engine:
        config = config_for(tmp_path, engine.url, idle_timeout=0.1)
        async with running(config) as gw:
            got = await gw.client.post(CHAT, json=STREAM)
            _, reply = await gw.turn()
    assert got.status_code == 504
    assert "UpstreamTimeoutError" in got.json()["error"]["message"]
    assert reply.meta["outcome"] == "upstream_error"


async def test_an_error_as_the_first_event_becomes_a_status(tmp_path: Path) -> None:
    """S11, P2."""
    error = event({"error": {"message": "input too long", "type": "BadRequestError", "code": 400}})
    async with (
        FakeUpstream([Send(chunked(error, DONE))]) as engine,
        running(config_for(tmp_path, engine.url)) as gw,
    ):
        got = await gw.client.post(CHAT, json=STREAM)
        await gw.turn()
    assert got.status_code == 400
    assert got.headers["content-type"] == "application/json"
    assert got.json()["error"]["message"] == "input too long"


@pytest.mark.parametrize(
    "frame",
    [
        b'event: error\ndata: {"error":{"message":"abort","code":500}}\n\n',
        b'data: {"object":"error","message":"abort","code":500}\n\n',
    ],
)
async def test_an_error_in_mid_stream_followed_by_done_is_no_success(tmp_path: Path, frame: bytes) -> None:
    """S11."""
    async with (
        FakeUpstream([Send(chunked(*FRAMES[:3], frame, DONE))]) as engine,
        running(config_for(tmp_path, engine.url)) as gw,
    ):
        got = await gw.client.post(CHAT, json=STREAM)
        _, reply = await gw.turn()
    error = json.loads(got.content.rstrip().rpartition(b"data: ")[2])["error"]
    assert (error["message"], error["type"], error["code"]) == ("abort", "server_error", 500)
    assert b"[DONE]" not in got.content
    assert reply.meta["outcome"] == "upstream_error"
    assert reply.meta["error"] == "abort"


@pytest.mark.parametrize("status", [400, 404, 413, 429, 500, 503])
@pytest.mark.parametrize("ask", [ASK, STREAM])
async def test_an_engines_refusal_keeps_its_status_and_retry_after(
    tmp_path: Path, status: int, ask: dict[str, object]
) -> None:
    """P2, P23."""
    flat = {
        "object": "error",
        "message": 'no\n\n  File "x.py", line 1',
        "type": "X",
        "param": None,
        "code": status,
    }
    refusal = answer(status, flat, {"retry-after": "7"})
    async with FakeUpstream([Send(refusal)]) as engine, running(config_for(tmp_path, engine.url)) as gw:
        got = await gw.client.post(CHAT, json=ask)
        _, reply = await gw.turn()
    assert got.status_code == status
    assert got.headers["retry-after"] == "7"
    assert got.json()["error"]["message"] == "no"
    assert reply.meta["outcome"] == ("rejected" if status in (400, 404, 413) else "upstream_error")


async def test_an_unreachable_engine_is_a_502(tmp_path: Path) -> None:
    """P2."""
    async with running(config_for(tmp_path, "http://127.0.0.1:9")) as gw:
        got = await gw.client.post(CHAT, json=STREAM)
        _, reply = await gw.turn()
    assert got.status_code == 502
    assert reply.meta["outcome"] == "upstream_error"


async def test_a_compressed_answer_is_readable(tmp_path: Path) -> None:
    """S16."""
    import gzip

    packed = gzip.compress(json.dumps(REPLY).encode())
    for status in (200, 429):
        reply = answer(status, packed, {"content-encoding": "gzip"})
        async with (
            FakeUpstream([Send(reply)]) as engine,
            running(config_for(tmp_path / str(status), engine.url)) as gw,
        ):
            got = await gw.client.post(CHAT, json=ASK)
        assert got.status_code == status
        assert got.json()
        assert int(got.headers["content-length"]) == len(got.content)
        assert "content-encoding" not in got.headers


async def test_connections_to_the_engine_are_kept_and_a_stale_one_is_replaced(tmp_path: Path) -> None:
    whole = [Send(chunked(WHOLE))]
    async with (
        FakeUpstream(whole, whole, [Send(chunked(WHOLE)), FIN], whole) as engine,
        running(config_for(tmp_path, engine.url)) as gw,
    ):
        for _ in range(4):
            got = await gw.client.post(CHAT, json=STREAM)
            assert got.content.endswith(DONE)
    assert engine.connections == 2


async def test_the_other_engine_answers_when_one_cannot_be_reached(tmp_path: Path) -> None:
    async with (
        FakeUpstream([Send(answer(200, REPLY))]) as engine,
        running(config_for(tmp_path, "http://127.0.0.1:9", engine.url)) as gw,
    ):
        for _ in range(3):
            assert (await gw.client.post(CHAT, json=ASK)).status_code == 200
        turns = await gw.settled(3)
    assert {reply.meta["engine"] for _, reply in turns} == {engine.url}


async def test_an_engine_that_refuses_the_capture_fields_still_serves(tmp_path: Path) -> None:
    """K11."""
    refusal = [Send(answer(400, {"error": {"message": "unknown field return_token_ids"}}))]
    plain = [Send(answer(200, {**REPLY, "choices": [{"index": 0, "message": {"content": "x"}}]}))]
    async with FakeUpstream(refusal, plain) as engine, running(config_for(tmp_path, engine.url)) as gw:
        first = await gw.client.post(CHAT, json=ASK)
        second = await gw.client.post(CHAT, json=ASK)
        health = (await gw.client.get("/healthz")).json()
    assert (first.status_code, second.status_code) == (200, 200)
    assert ["return_token_ids" in asked.json for asked in engine.asked()] == [True, False, False]
    assert health["status"] == "degraded"
    assert "no token ids" in health["warnings"][0]


async def test_an_engine_that_ignores_the_capture_fields_is_noticed(tmp_path: Path) -> None:
    """K11."""
    frames = chunked(*FRAMES, DONE)
    async with FakeUpstream([Send(frames)]) as engine, running(config_for(tmp_path, engine.url)) as gw:
        await gw.client.post(CHAT, json=STREAM)
        health = (await gw.client.get("/healthz")).json()
    assert "no token ids" in health["warnings"][0]


async def test_completions_are_asked_for_ids_and_shown_without_them(tmp_path: Path) -> None:
    """P22."""
    whole = {"id": "x", "choices": [{"index": 0, "text": "a", "token_ids": [3], "prompt_token_ids": [1]}]}
    async with (
        FakeUpstream([Send(answer(200, whole))]) as engine,
        running(config_for(tmp_path, engine.url)) as gw,
    ):
        got = await gw.client.post("/v1/completions", json={"model": "m", "prompt": [1, 2]})
        request, _ = await gw.turn()
    assert got.json()["choices"] == [{"index": 0, "text": "a"}]
    sent = engine.asked("/v1/completions")[0].json
    assert sent["prompt"] == [1, 2]
    assert sent["return_token_ids"] is True
    assert request.meta["path"] == "/v1/completions"
