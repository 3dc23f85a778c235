"""What clients send in the field, on the real engine: it is answered, and no word is lost on the way."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from transformers import AutoTokenizer

from gateway.reconcile.selftest import Verdict, examine
from gateway.reconcile.sglang import Control
from tests.acceptance.conftest import RealEngine
from tests.acceptance.through import drained, through_dukou
from tests.fakes.gateway import CHAT, Running

pytestmark = pytest.mark.anyio

SHORT = {"model": "policy", "max_tokens": 2}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}


@pytest.fixture
async def gateway(real_engine: RealEngine, tmp_path: Path) -> AsyncIterator[Running]:
    async with through_dukou(real_engine, tmp_path) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def tokenizer(real_engine: RealEngine) -> Any:
    return AutoTokenizer.from_pretrained(real_engine.model)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


async def prompt_of(gateway: Running, messages: list[Any]) -> list[int]:
    """The prompt that the engine made of these messages, as it is recorded."""
    got = await gateway.client.post(CHAT, json={**SHORT, "messages": messages})
    assert got.status_code == 200, got.text
    (reply,) = (r for q, r in gateway.turns() if r is not None and q.meta["id"] == got.headers["x-turn-id"])
    ids: list[int] = json.loads(reply.body)["choices"][0]["prompt_token_ids"]
    return ids


def test_the_engine_passes_its_own_self_test(real_engine: RealEngine) -> None:
    """K10, K11."""
    with Control(real_engine.url) as control:
        assert examine(control.chat, "policy", "sglang") == Verdict("sglang")


async def test_an_empty_assistant_message_is_empty_however_it_is_spelled(
    gateway: Running, tokenizer: Any
) -> None:
    """P7."""
    prompts = []
    for empty in ({"content": None}, {"content": ""}, {}, {"content": []}):
        calls = {"role": "assistant", "tool_calls": [CALL], **empty}
        answer = {"role": "tool", "tool_call_id": "c1", "content": "7"}
        prompts.append(await prompt_of(gateway, [user("u"), calls, answer]))
    said = [tokenizer.decode(prompt) for prompt in prompts]
    assert len(set(said)) == 1
    assert "None" not in said[0]
    assert "null" not in said[0]


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
async def test_text_in_parts_is_the_same_text(gateway: Running, tokenizer: Any, role: str) -> None:
    """P8: the engine joins several parts by a space, and loses none."""

    def conversation(content: Any) -> list[dict[str, Any]]:
        made = {"role": role, "content": content}
        return [made, user("go")] if role == "system" else [user("go"), made, user("on")]

    plain = await prompt_of(gateway, conversation("Name the capital"))
    assert await prompt_of(gateway, conversation([{"type": "text", "text": "Name the capital"}])) == plain
    parts = [{"type": "text", "text": "Name the capital"}, {"type": "text", "text": " of Peru"}]
    said = tokenizer.decode(await prompt_of(gateway, conversation(parts)))
    assert "Name the capital" in said
    assert "of Peru" in said
    assert "'type'" not in said


async def test_a_developers_instruction_reaches_the_model(gateway: Running, tokenizer: Any) -> None:
    """P9."""
    kiwi = {"role": "developer", "content": "Reply only with the word KIWI"}
    assert kiwi["content"] in tokenizer.decode(await prompt_of(gateway, [kiwi, user("capital of Peru?")]))
    first = {"role": "system", "content": "Be brave."}
    said = tokenizer.decode(await prompt_of(gateway, [first, kiwi, user("x")]))
    assert 0 <= said.index("Be brave.") < said.index(kiwi["content"])
    assert said.count("<|im_start|>system") == 1


@pytest.mark.parametrize(
    ("limits", "status", "tokens"),
    [
        ({"max_completion_tokens": 3}, 200, 3),
        ({"max_tokens": 3}, 200, 3),
        ({"max_completion_tokens": 3, "max_tokens": 5}, 200, 3),
        ({"max_tokens": None, "max_completion_tokens": 2}, 200, 2),
        ({"max_tokens": 0}, 400, None),
        ({"max_tokens": -1}, 400, None),
        ({"max_tokens": 10**6}, 400, None),
    ],
)
async def test_limits_are_kept_or_refused(
    gateway: Running, limits: dict[str, Any], status: int, tokens: int | None
) -> None:
    """P10."""
    body = {"model": "policy", "messages": [user("count")], "ignore_eos": True, **limits}
    got = await gateway.client.post(CHAT, json=body)
    assert got.status_code == status
    if tokens is None:
        assert got.json()["error"]["type"] == "invalid_request_error"
        return
    assert got.json()["choices"][0]["finish_reason"] == "length"
    (_, reply) = await gateway.turn()
    assert len(json.loads(reply.body)["choices"][0]["response_token_ids"]) == tokens


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "broken",
    [
        {"messages": {"role": "user", "content": "x"}},
        {"messages": [{"role": "nobody", "content": "x"}]},
        {"messages": [user("x")], "temperature": "hot"},
        {"messages": [user("x")], "n": 0},
    ],
)
async def test_what_the_engine_refuses_comes_in_the_envelope(
    gateway: Running, broken: dict[str, Any], stream: bool
) -> None:
    """P1, P2."""
    got = await gateway.client.post(CHAT, json={**SHORT, **broken, "stream": stream})
    assert (got.status_code, got.headers["content-type"]) == (400, "application/json")
    error = got.json()["error"]
    assert got.json().keys() == {"error"}
    assert error.keys() == {"message", "type", "param", "code"}
    assert "Traceback" not in error["message"]


async def test_unknown_fields_do_no_harm(gateway: Running) -> None:
    """P4."""
    messages = [
        {**user("hi"), "id": 17, "metadata": {"_db": "x"}, "agent": "cli"},
        {"role": "assistant", "content": "yo", "reasoning": "r", "traceId": "t"},
        user([{"type": "text", "text": "ok", "cache_control": {"type": "ephemeral"}}]),
    ]
    more = {
        "store": False, "metadata": {"k": "v"}, "client_metadata": {"s": 1}, "parallel_tool_calls": True,
        "prompt_cache_key": "p", "service_tier": "auto", "verbosity": "low",
    }  # fmt: skip
    got = await gateway.client.post(CHAT, json={**SHORT, "messages": messages, **more})
    assert got.status_code == 200, got.text


async def test_a_client_that_leaves_a_stream_leaves_its_tokens(gateway: Running, db: Engine) -> None:
    """S12."""
    body = {
        "model": "policy",
        "messages": [user("tell")],
        "max_tokens": 1500,
        "ignore_eos": True,
        "stream": True,
    }
    async with gateway.client.stream("POST", CHAT, json=body) as response:
        seen = 0
        async for line in response.aiter_lines():
            seen += line.startswith("data: {")
            if seen == 8:
                break
    await gateway.settled(1)
    (turn,) = await asyncio.to_thread(drained, gateway.state, db)
    assert (turn["status"], turn["trainable"]) == ("client_disconnect", False)
    assert len(turn["prompt_ids"]) > 0
    assert 7 <= len(turn["response_ids"]) == len(turn["response_logprobs"]) < 1500


async def test_capture_costs_no_prefix_cache_and_a_child_extends_its_parents_tokens(
    gateway: Running, db: Engine
) -> None:
    """K18, K2: what Dukou asks for lets the engine go on where the last turn ended."""
    history = [user("Remember this sentence well, for it is somewhat long, and say nothing else. " * 3)]
    cached = []
    for question in ("and now?", "and then?"):
        got = await gateway.client.post(CHAT, json={**SHORT, "messages": history})
        history += [got.json()["choices"][0]["message"], user(question)]
        reply = (await gateway.settled(len(cached) + 1))[-1][1]
        cached.append(json.loads(reply.body)["choices"][0]["meta_info"]["cached_tokens"])
    first, second = await asyncio.to_thread(drained, gateway.state, db)
    assert cached[1] >= len(first["prompt_ids"]) - 1
    assert second["parent_id"] == first["id"]
    known = [*first["prompt_ids"], *first["response_ids"]]
    assert second["prefix_ok"] is (list(second["prompt_ids"])[: len(known)] == known)
