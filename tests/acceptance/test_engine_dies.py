"""A request that kills the real SGLang: an id beyond the vocabulary, on a CPU."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dukou.local.engine.__main__ import say
from dukou.local.engine.start import start, stop
from dukou.settings.paths import StatePaths
from gateway.reconcile.engine_facts import Vocabularies
from gateway.reconcile.reconciler import look
from gateway.reconcile.sglang import Control, Health
from tests.acceptance.conftest import RealEngine, configured
from tests.acceptance.through import through_dukou
from tests.fakes.gateway import route

pytestmark = pytest.mark.anyio

COMPLETIONS = "/v1/completions"


@pytest.fixture
def mortal(installed: StatePaths, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    """An engine of its own, which may be dead at the end."""
    config = configured(installed, tmp_path_factory.mktemp("mortal"))
    process = start(config, say)
    try:
        yield RealEngine(config, Path(config.engine.model_path), process.pid)
    finally:
        stop(process)


async def test_an_id_beyond_the_vocabulary_is_refused_and_kills_where_it_is_not(
    mortal: RealEngine, tmp_path: Path
) -> None:
    with Control(mortal.url) as control:
        known = Vocabularies()
        known.saw(mortal.url, look(control).model_path)
        size = known.size(mortal.url)
        assert size == json.loads((mortal.model / "config.json").read_text())["vocab_size"]
        ask = {"model": mortal.config.engine.served_name, "prompt": [1, 10**7], "max_tokens": 4}
        state = tmp_path / "state"
        async with through_dukou(mortal, state) as gw:
            entry = {"url": mortal.url, "state": "ready"}
            route(state, {**entry, "vocab_size": size})
            refused = await gw.client.post(COMPLETIONS, json=ask)
            last = await gw.client.post(COMPLETIONS, json=ask | {"prompt": [1, size - 1]})
            route(state, entry)
            gw.server.config.app.health._router._look_at = float("-inf")
            killed = await gw.client.post(COMPLETIONS, json=ask)
            turns = await gw.settled(3)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_token_id")
        assert last.status_code == 200
        assert (killed.status_code, killed.json()["error"]["code"]) == (502, "upstream_closed")
        assert control.health() is Health.DEAD
    (line,) = (state / "run" / "suspects" / "deaths.jsonl").read_bytes().split()
    assert (json.loads(line)["engine"], json.loads(line)["begun"]) == (mortal.url, False)
    assert [reply.meta["outcome"] for _, reply in turns][:2] == ["rejected", "ok"]
