"""Which version a session gets where an engine serves several: the live one, its own, one on trial. Pure."""

from dataclasses import replace
from hashlib import sha256

from gateway.relay.routes import Engine, Others


def settled(engine: Engine, others: Others, session: str | None, who: str) -> Engine:
    """The engine as one request uses it: another adapter than the live one where that is asked for.

    `session`: tenant/session where the client named one. `who`: the same text for every request of a
    conversation. An adapter that this engine lacks is passed over: the live one serves.
    """
    pinned = others.pins.get(session) if session is not None else None
    if pinned is not None:
        return _at(engine, pinned)
    if others.trial is not None and _place(others.trial, who) < others.share:
        return _at(engine, others.trial)
    return engine


def _at(engine: Engine, version: int) -> Engine:
    if version == 0 and engine.adapter is not None:
        return replace(engine, version_low=0, version_high=0, adapter=None, exact=True)
    name = engine.beside.get(version)
    if name is None:
        return engine
    return replace(engine, version_low=version, version_high=version, adapter=name, exact=True)


def _place(trial: int, who: str) -> float:
    """Where a conversation stands between 0 and 1: elsewhere in each trial, the same during one."""
    digest = sha256(f"{trial}:{who}".encode()).digest()
    return int.from_bytes(digest[:8]) / 2.0**64
