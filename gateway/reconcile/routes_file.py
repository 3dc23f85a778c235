"""The routes file: what the workers know of the engines, written by the reconciler.

It is also the reconciler's own memory over a restart: it is written before the first control call of an
update, so a successor sees that an engine may have been left paused between two versions.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path

import orjson

from gateway.reconcile.decide import Memory, Route


def write(path: Path, policy: str, model: str, routes: Mapping[str, Route]) -> None:
    """Replaces the file atomically. `routes`: by engine URL."""
    content = {
        "policy": policy,
        "model": model,
        "written_ns": time.time_ns(),
        "engines": [
            {
                "url": url,
                "state": route.state,
                "reason": route.reason,
                "version_low": route.low,
                "version_high": route.high,
                "adapter": route.adapter,
                "dialect": route.dialect,
            }
            for url, route in routes.items()
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
    draft.replace(path)


def remember(path: Path) -> dict[str, Memory]:
    """What a predecessor knew, by engine URL; empty where there is no file or it cannot be read."""
    try:
        engines = orjson.loads(path.read_bytes())["engines"]
        return {engine["url"]: _memory(engine) for engine in engines}
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return {}


def _memory(engine: Mapping[str, object]) -> Memory:
    low, high = engine["version_low"], engine["version_high"]
    span = (low, high) if isinstance(low, int) and isinstance(high, int) else None
    adapter, dialect = engine["adapter"], engine["dialect"]
    # A `starting` or `dead` engine may come back with what it had: its label will tell.
    return Memory(
        span=span,
        adapter=adapter if isinstance(adapter, str) else None,
        dialect=dialect if isinstance(dialect, str) else None,
        updating=engine["state"] == "updating",
    )
