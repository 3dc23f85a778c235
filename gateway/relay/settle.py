"""Chooses the version that a session gets where an engine serves several. Pure.

That is the version that the session is pinned to, the one on trial, or the live one.
"""

from dataclasses import replace
from hashlib import sha256

from gateway.routes import EngineRoute, OtherVersions


def version_for_session(
    engine: EngineRoute, others: OtherVersions, session: str | None, conversation: str
) -> EngineRoute:
    """The engine with the version and adapter that one request uses.

    `session`: tenant/session; None where the client states none. `conversation`: the same text for every
    request of a conversation. Where this engine lacks the version's adapter, the live version serves.
    """
    pinned = others.pins.get(session) if session is not None else None
    if pinned is not None:
        return _at_version(engine, pinned)
    if others.trial is not None and _position(others.trial, conversation) < others.share:
        return _at_version(engine, others.trial)
    return engine


def _at_version(engine: EngineRoute, version: int) -> EngineRoute:
    if version == 0 and engine.adapter is not None:
        return replace(engine, version_low=0, version_high=0, adapter=None, exact=True)
    name = engine.beside.get(version)
    if name is None:
        return engine
    return replace(engine, version_low=version, version_high=version, adapter=name, exact=True)


def _position(trial: int, conversation: str) -> float:
    """A number from 0 to 1, constant for a conversation during one trial, unrelated in the next."""
    digest = sha256(f"{trial}:{conversation}".encode()).digest()
    return int.from_bytes(digest[:8]) / 2.0**64
