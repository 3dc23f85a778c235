"""A worker between a test and the real engine, and what its spool becomes."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import Engine, text

from dukou.settings.model import Config
from dukou.settings.serving import Gateway
from gateway.drain.drainer import Drainer
from gateway.reconcile import engine_facts
from gateway.reconcile.sglang import Control
from gateway.spool.reader import SpoolReader
from tests.acceptance.conftest import RealEngine
from tests.fakes.gateway import Running, running


def config_for(engine: RealEngine, state: Path, **changes: Any) -> Config:
    """A gateway without keys before the real engine."""
    served = engine.config.engine.model_copy(update=changes)
    return Config(state_dir=state, engine=served, gateway=Gateway(keys=[]))


@asynccontextmanager
async def through_dukou(engine: RealEngine, state: Path) -> AsyncIterator[Running]:
    """A gateway that knows the engine to be ready, at version 0."""
    route: dict[str, Any] = {"url": engine.url, "state": "ready", "version_low": 0, "version_high": 0}
    with Control(engine.url) as control:
        info = control.server_info()
    tool_calling = {"parser": info.tool_call_parser, "grammar": info.grammar_backend}
    route |= {"sampling_defaults": engine_facts.read(info), "tool_calling": tool_calling}
    (state / "run").mkdir(parents=True)
    (state / "run" / "routes.json").write_text(json.dumps({"engines": [route]}))
    async with running(config_for(engine, state)) as gateway:
        gateway.client.timeout = httpx.Timeout(120)
        yield gateway


def drained(state: Path, db: Engine) -> list[dict[str, Any]]:
    """All that is in the spool and in the table, as rows of the `turn` view with two columns more."""
    drainer = Drainer(Config(state_dir=state), SpoolReader(state / "spool"))
    while drainer.drain_once(db):
        pass
    with db.connect() as connection:
        query = (
            "select turn.*, turns.request_id, turns.matched_stop "
            "from turn join turns using (id) order by turn.started_at, id"
        )
        return [dict(row) for row in connection.execute(text(query)).mappings()]
