"""The routes file: what the workers know of the engines, written by the reconciler.

It is also the reconciler's own memory over a restart: it is written before the first control call of an
update, so a successor sees that an engine may have been left paused between two versions.
"""

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from gateway.reconcile.beside import ExtraAdapters
from gateway.reconcile.decide import Memory, Route, adapter_version
from gateway.reconcile.tool_calling import ToolCalling

NO_EXTRA_ADAPTERS = ExtraAdapters()
NO_DEFAULTS: Mapping[str, Mapping[str, Any]] = {}
NO_TOOL_CALLING: Mapping[str, ToolCalling] = {}


def write(
    path: Path,
    policy: str,
    model: str,
    routes: Mapping[str, Route],
    extra: ExtraAdapters = NO_EXTRA_ADAPTERS,
    defaults: Mapping[str, Mapping[str, Any]] = NO_DEFAULTS,
    tool_calling: Mapping[str, ToolCalling] = NO_TOOL_CALLING,
) -> None:
    """Replaces the file atomically.

    `routes`: by engine URL. `extra`: who is sent to another version. `defaults`: what an engine takes for
    sampling fields that a chat request leaves out, by engine URL. `tool_calling`: how an engine reads tool
    calls, by engine URL. An engine that is missing in either: unknown.
    """
    trial = extra.trial
    content = {
        "policy": policy,
        "model": model,
        "written_ns": time.time_ns(),
        "trial": None if trial is None else {"version": trial.version, "share": extra.share},
        "pins": extra.pins,
        "engines": [
            {
                "url": url,
                "state": route.state,
                "reason": route.reason,
                "version_low": route.version_low,
                "version_high": route.version_high,
                "adapter": route.adapter,
                "dialect": route.dialect,
                "beside": _by_version(route.beside, policy),
                "sampling_defaults": defaults.get(url),
                "vocab_size": route.vocab_size,
                "tool_calling": tool_calling.get(url),
            }
            for url, route in routes.items()
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
    draft.replace(path)


def _by_version(names: Iterable[str], policy: str) -> dict[str, str]:
    versions = ((adapter_version(name, policy), name) for name in names)
    return {str(version): name for version, name in versions if version is not None}


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
