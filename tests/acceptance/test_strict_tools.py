"""Strict tools that a model may call, on the real engine: what is masked of an answer, and what is trained.

The tiny model learns by heart to call a tool, with a blank after `"name":` as models like to write it. The
grammar of strict tools allows none there: what it forces is what the model itself would hardly have said. How
it begins and ends an answer is left to chance, so that a mask would show there as well.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sqlalchemy import Engine
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

from dukou.store import spans
from gateway.reconcile.sglang import Control
from tests.acceptance.conftest import RealEngine
from tests.acceptance.through import drained, through_dukou
from tests.fakes.gateway import CHAT

pytestmark = pytest.mark.anyio

CLOSE = 0.25  # nats by which two computations of the same may differ in bfloat16
BEFORE = ("Let me look. <tool_call", "One moment. <tool_call")
AFTER = (" That is all.<|im_end|>", " Good bye.<|im_end|>")
SAID = '>\n{"name": "weather", "arguments": {"city": "Lima"}}\n</tool_call>'
FORCED = '>\n{"name":"weather", "arguments":{"city": "Lima"}}\n</tool_call>'
STEPS = 80


def body(*, strict: bool, **more: Any) -> dict[str, Any]:
    city = {"type": "object", "properties": {"city": {"enum": ["Lima", "Oslo"]}}, "required": ["city"]}
    function = {"name": "weather", "parameters": city, "strict": strict}
    asked = {"model": "policy", "messages": [{"role": "user", "content": "weather?"}], "max_tokens": 80}
    return {**asked, "tools": [{"type": "function", "function": function}], **more}


def prompt_of(engine: RealEngine) -> list[int]:
    more = {"max_tokens": 1, "return_token_ids": True}
    got = httpx.post(f"{engine.url}{CHAT}", json=body(strict=True, **more), timeout=60).json()
    ids: list[int] = got["choices"][0]["prompt_token_ids"]
    return ids


def learn(folder: Path, prompt: Sequence[int], lessons: Sequence[tuple[list[int], int]]) -> None:
    """Teaches the model in `folder` to go on with each lesson's ids, from the given place of them on."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    adam = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(STEPS):
        adam.zero_grad()
        for ids, place in lessons:
            tokens = torch.tensor([[*prompt, *ids]])
            hidden = model.model(tokens).last_hidden_state[0, len(prompt) + place - 1 : -1]
            cross_entropy(model.lm_head(hidden), tokens[0, len(prompt) + place :]).backward()
        adam.step()
    model.model.norm.weight.data *= 2  # surer of all that it says
    kept, learnt = load_file(folder / "model.safetensors"), model.state_dict()
    learnt = {name: learnt[name].to(tensor.dtype).contiguous() for name, tensor in kept.items()}
    save_file(learnt, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture(scope="module")
def caller(real_engine: RealEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    """The session's engine with the weights of a model that calls the tool; its own again afterwards."""
    folder = tmp_path_factory.mktemp("caller") / "model"
    shutil.copytree(real_engine.model, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    said = [tokenizer.encode(before + SAID + AFTER[0]) for before in BEFORE]
    forced = [tokenizer.encode(BEFORE[0] + FORCED + after) for after in AFTER]
    fork = next(n for n, (one, other) in enumerate(zip(said[0], forced[0], strict=False)) if one != other)
    torch.manual_seed(0)
    lessons = [*((ids, 0) for ids in said), *((ids, fork + 1) for ids in forced)]
    learn(folder, prompt_of(real_engine), lessons)
    with Control(real_engine.url) as control:
        control.update_weights_from_disk(str(folder), "0", flush_cache=True)
        yield real_engine
        control.update_weights_from_disk(str(real_engine.model), "0", flush_cache=True)
    shutil.rmtree(folder)


def free(engine: RealEngine, row: dict[str, Any]) -> np.ndarray[Any, Any]:
    """How much likelier each token of an answer is recorded than the model finds it without a grammar."""
    prompt, ids = (row[name].tolist() for name in ("prompt_ids", "response_ids"))
    with Control(engine.url) as control:
        control.flush_cache()
        return np.asarray(row["response_logprobs"] - np.array(control.score([*prompt, *ids], len(prompt))))


async def asked(engine: RealEngine, state: Path, db: Engine, *bodies: dict[str, Any]) -> list[dict[str, Any]]:
    async with through_dukou(engine, state) as gateway:
        for one in bodies:
            assert (await gateway.client.post(CHAT, json=one)).status_code == 200
    return drained(state, db)


async def test_a_call_of_a_strict_tool_is_masked_between_its_tags_and_what_is_around_it_is_free(
    caller: RealEngine, db: Engine, tmp_path: Path
) -> None:
    bodies = [body(strict=True, stream=stream, n=4) for stream in (True, False)]
    rows = await asked(caller, tmp_path, db, *bodies)
    tokenizer = AutoTokenizer.from_pretrained(caller.model)
    called = [row for row in rows if row["finish_reason"] == "tool_calls"]
    assert len(rows) == 8
    assert {row["stream"] for row in called} == {True, False}, [row["response_text"] for row in rows]
    for row in called:
        assert (row["sampling_class"], row["untrainable_reason"]) == ("free", None)
        assert json.loads(row["tool_calls"][0]["function"]["arguments"])["city"] in ("Lima", "Oslo")
        ids = row["response_ids"]
        trained = spans.positions(row["trained_tokens"], len(ids))
        masked = np.setdiff1d(np.arange(len(ids)), trained)
        assert tokenizer.decode(ids[: masked[0]]).endswith("<tool_call")
        assert tokenizer.decode(ids[masked]).startswith('>\n{"name":"weather", "arguments":')
        assert tokenizer.decode(ids[masked]).endswith("}\n</tool_call>")
        higher = free(caller, row)
        assert np.abs(higher[trained]).max() < CLOSE
        assert higher[masked].min() > -CLOSE
        assert higher[masked].max() > 2
    # What was left to chance before and after a call is among what was compared.
    edges = [row["trained_tokens"] for row in called]
    told = [row["response_logprobs"] for row in called]
    before = np.concatenate([each[: edge[1]] for each, edge in zip(told, edges, strict=True)])
    after = np.concatenate([each[edge[2] :] for each, edge in zip(told, edges, strict=True) if len(edge) > 2])
    assert max(before.min(), after.min()) < -0.3


async def test_an_answer_without_a_call_and_a_tool_that_is_not_strict_are_free(
    caller: RealEngine, db: Engine, tmp_path: Path
) -> None:
    cut = min(len(AutoTokenizer.from_pretrained(caller.model).encode(before)) for before in BEFORE)
    plain, loose = body(strict=True, stream=True, max_tokens=cut), body(strict=False, stream=True, n=4)
    rows = await asked(caller, tmp_path, db, plain, loose)
    for row in rows:
        assert (row["sampling_class"], row["untrainable_reason"]) == ("free", None)
        assert row["trained_tokens"] is None
        assert np.abs(free(caller, row)).max() < CLOSE
    tokenizer = AutoTokenizer.from_pretrained(caller.model)
    said = [tokenizer.decode(row["response_ids"]) for row in rows[1:]]
    assert any("<tool_call>" in each for each in said), said


async def test_the_engine_says_its_parser_and_its_grammar_backend(real_engine: RealEngine) -> None:
    with Control(real_engine.url) as control:
        said = control.server_info()
    assert said.tool_call_parser in ("qwen25", "qwen")
    assert said.grammar_backend == "xgrammar"
