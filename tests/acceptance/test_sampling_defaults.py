"""What the real engine samples with where a request does not say, and what Dukou says that it did.

The model is the tiny one with a `generation_config.json` that recommends what many models do. The temperature
shows in the log-probabilities: the trainer's own forward pass gives the same ones at that temperature only.
"""

import asyncio
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from sqlalchemy import Engine
from transformers import AutoModelForCausalLM

from dukou.local.engine.__main__ import say
from dukou.local.engine.models import TINY_MODEL
from dukou.local.engine.start import start, stop
from dukou.settings.paths import StatePaths
from gateway.reconcile import engine_facts
from gateway.reconcile.sglang import Control
from tests.acceptance.conftest import RealEngine, configured
from tests.acceptance.through import drained, through_dukou
from tests.fakes.gateway import CHAT

pytestmark = pytest.mark.anyio

RECOMMENDED = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
NULLS: dict[str, Any] = dict.fromkeys(("temperature", "top_p", "top_k", "min_p", "repetition_penalty"))
NEUTRAL = {"temperature": 1, "top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1}
LONG = {"model": "policy", "max_tokens": 48, "ignore_eos": True}


def with_recommendation(model: Path, folder: Path, values: dict[str, Any]) -> Path:
    """A copy of a model whose own file recommends `values`."""
    shutil.copytree(model, folder)
    (folder / engine_facts.FILE).write_text(json.dumps(IDS | values))
    return folder


@pytest.fixture(scope="module")
def engine(installed: StatePaths, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    """As Dukou starts it where nothing is set, but with preferences of its own, which chat ignores."""
    state = tmp_path_factory.mktemp("recommending")
    model = with_recommendation(installed.models.resolve() / TINY_MODEL, state / "model", RECOMMENDED)
    preferred = ["--preferred-sampling-params", '{"temperature": 0.3}']
    config = configured(installed, state, preferred, model=str(model))
    process = start(config, say)
    try:
        yield RealEngine(config, model, process.pid)
    finally:
        stop(process)


@pytest.fixture(scope="module")
def model(engine: RealEngine) -> Any:
    return AutoModelForCausalLM.from_pretrained(engine.model, dtype=torch.float32)


def logits(model: Any, prompt: Sequence[int], answer: Sequence[int]) -> torch.Tensor:
    """(T, V): before every token of the answer."""
    with torch.no_grad():
        found: torch.Tensor = model(torch.tensor([[*prompt, *answer]])).logits[0]
    return found[len(prompt) - 1 : -1]


def apart(model: Any, row: dict[str, Any], temperature: float) -> float:
    """Mean difference of what was recorded from the forward pass at a temperature, in nats a token."""
    prompt, answer = [int(i) for i in row["prompt_ids"]], [int(i) for i in row["response_ids"]]
    scored = (logits(model, prompt, answer) / temperature).log_softmax(-1)
    ours = scored.gather(-1, torch.tensor(answer)[:, None])[:, 0]
    return float((ours - torch.tensor([float(x) for x in row["response_logprobs"]])).abs().mean())


async def test_what_a_chat_request_leaves_out_is_recorded_as_the_engine_sampled_it(
    engine: RealEngine, model: Any, tmp_path: Path, db: Engine
) -> None:
    asked = [{}, {"stream": True}, NULLS, {"temperature": 1}, NEUTRAL]
    async with through_dukou(engine, tmp_path) as gateway:
        for number, more in enumerate(asked):
            body = LONG | {"messages": [{"role": "user", "content": f"Name river {number}."}]} | more
            assert (await gateway.client.post(CHAT, json=body)).status_code == 200
    rows = await asyncio.to_thread(drained, tmp_path, db)
    said = [(row["sampling_class"], row["temperature"], row["untrainable_reason"]) for row in rows]
    assert said == [("truncated", 0.6, None)] * 3 + [("truncated", 1.0, None), ("free", 1.0, None)]
    assert [row["sampling_defaults"] for row in rows] == [RECOMMENDED] * 5
    for row, other in zip(rows, (1.0, 1.0, 1.0, 0.6, 0.6), strict=True):
        assert 3 * apart(model, row, row["temperature"]) < apart(model, row, other)


async def test_completions_and_generate_know_nothing_of_the_file(engine: RealEngine, model: Any) -> None:
    prompt = [1, 504, 253, 1798, 338, 28]
    async with httpx.AsyncClient(base_url=engine.url, timeout=60) as client:
        body = LONG | {"prompt": prompt, "logprobs": 1, "return_token_ids": True}
        made = (await client.post("/v1/completions", json=body)).json()
        (choice,) = made["choices"]
        plain = {"prompt_ids": prompt, "response_ids": choice["token_ids"]}
        plain["response_logprobs"] = choice["logprobs"]["token_logprobs"]
        native = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 48, "ignore_eos": True}}
        answer = (await client.post("/generate", json=native | {"return_logprob": True})).json()
        given = answer["meta_info"]["output_token_logprobs"]
        preferred = {"prompt_ids": prompt, "response_ids": [token for _, token, _ in given]}
        preferred["response_logprobs"] = [logprob for logprob, _, _ in given]
    assert 3 * apart(model, plain, 1.0) < apart(model, plain, 0.6)
    assert 3 * apart(model, preferred, 0.3) < apart(model, preferred, 0.6)


async def test_a_published_folder_brings_its_weights_and_not_its_recommendation(
    engine: RealEngine, model: Any, tmp_path: Path, checkpoints: Path, db: Engine
) -> None:
    other = with_recommendation(engine.model, checkpoints / "1", {"temperature": 0.2})
    with Control(engine.url) as control:
        control.update_weights_from_disk(str(other), "0", flush_cache=True)
        info = control.model_info()
        assert info is not None
        assert info.model_path == str(other)
        assert control.server_info().model_path == str(engine.model)
        assert engine_facts.read(control.server_info()) == RECOMMENDED
    async with through_dukou(engine, tmp_path) as gateway:
        await gateway.client.post(CHAT, json=LONG | {"messages": [{"role": "user", "content": "Name it."}]})
    (row,) = await asyncio.to_thread(drained, tmp_path, db)
    assert row["temperature"] == 0.6
    assert 3 * apart(model, row, 0.6) < apart(model, row, 0.2)
