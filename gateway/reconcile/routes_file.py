"""The routes file on disk, written by the reconciler.

It is also the reconciler's own memory over a restart: it is written before the first control call of an
update, so a successor sees that an engine may have been left paused between two versions.
"""

import os
from pathlib import Path

from gateway.reconcile.adapter_plan import ExtraAdapters
from gateway.reconcile.decide import Memory, Route, adapter_version
from gateway.routes import BadRoutesError, EngineFacts, EngineRoute, OtherVersions, Routes, dump, load


def write(path: Path, routes: Routes) -> None:
    """Replaces the file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(dump(routes))
    draft.replace(path)


def engine_route(url: str, route: Route, facts: EngineFacts, policy: str) -> EngineRoute:
    """The entry of one engine. `policy`: whose adapters are served beside the live one."""
    versions = ((adapter_version(name, policy), name) for name in route.beside)
    return EngineRoute(
        url=url,
        state=route.state,
        version_low=route.version_low,
        version_high=route.version_high,
        adapter=route.adapter,
        dialect=route.dialect,
        reason=route.reason,
        beside={version: name for version, name in versions if version is not None},
        facts=facts,
    )


def other_versions(extra: ExtraAdapters) -> OtherVersions:
    """The sessions that get another version than the live one."""
    if extra.trial is None:
        return OtherVersions(pins=extra.pins)
    return OtherVersions(extra.trial.version, extra.share, extra.pins)


def remember(path: Path) -> dict[str, Memory]:
    """The memories of a predecessor, by engine URL; empty where there is no file or it cannot be read."""
    try:
        routes = load(path.read_bytes())
    except (OSError, BadRoutesError):
        return {}
    return {engine.url: _memory(engine) for engine in routes.engines}


def _memory(engine: EngineRoute) -> Memory:
    low, high = engine.version_low, engine.version_high
    # A `starting` or `dead` engine may come back with what it had: its label will tell.
    return Memory(
        span=None if low is None or high is None else (low, high),
        adapter=engine.adapter,
        dialect=engine.dialect,
        updating=engine.state == "updating",
    )
