"""W1: after an update, no new request may use keys and values that the old weights had computed."""

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors.torch import load_file, save_file

from gateway.reconcile.sglang import Control
from tests.acceptance.conftest import RealEngine

SYSTEM = "You are the keeper of a ferry landing. " * 40


def ask(engine: RealEngine, version: int) -> tuple[float, int]:
    """(log-probability of the first token at temperature 0, prompt tokens found in the cache)."""
    body = {
        "model": "policy",
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "x"}],
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": True,
        "return_meta_info": True,
        "cache_salt": str(version),  # what the gateway sends: the version
    }
    reply = httpx.post(f"{engine.url}/v1/chat/completions", json=body, timeout=60)
    choice: dict[str, Any] = reply.raise_for_status().json()["choices"][0]
    return choice["logprobs"]["content"][0]["logprob"], choice["meta_info"]["cached_tokens"]


@pytest.fixture
def control(real_engine: RealEngine) -> Iterator[Control]:
    with Control(real_engine.url) as made:
        yield made
        made.update_weights_from_disk(str(real_engine.model), "0", flush_cache=True)


def test_a_prefix_that_old_weights_computed_is_not_used_under_the_new_salt(
    real_engine: RealEngine, control: Control, checkpoints: Path
) -> None:
    made = checkpoints / "7"
    shutil.copytree(real_engine.model, made)
    tensors = load_file(made / "model.safetensors")
    inner = [name for name in tensors if name.endswith("k_proj.weight")]
    save_file(tensors | {name: -2 * tensors[name] for name in inner}, made / "model.safetensors")
    ask(real_engine, 0)
    _, cached = ask(real_engine, 0)
    assert cached > 100  # the old prefix is in the cache, and hot
    control.pause("in_place")
    control.update_weights_from_disk(str(made), "7", flush_cache=False)
    control.continue_()
    fresh, cached = ask(real_engine, 7)
    assert cached == 0
    control.flush_cache()
    again, _ = ask(real_engine, 7)
    assert math.isclose(fresh, again, abs_tol=0.2)  # two runs of the same tokens differ by up to that
