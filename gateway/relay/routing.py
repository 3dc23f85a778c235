"""Decides when a request that got no answer is sent again, and to which engines. Pure.

A request that no engine has received may go to any other. One that was sent and then lost (the engine closed
the connection before its answer was whole) may be what the engine died of: it goes to one other engine, once.

Chooses the version that a session gets where an engine serves several. Pure.

That is the version that the session is pinned to, the one on trial, or the live one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import sha256

from gateway.routes import EngineRoute, OtherVersions

#: How often a request is sent again after an engine that had received it closed the connection.
MAX_RESENDS = 1
#: Seconds in which a round trip to an engine is over, even on a busy machine.
ROUND_TRIP_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Attempts:
    """The failed attempts at one request so far, by engine URL."""

    unsent: frozenset[str] = frozenset()  # no connection: the engine has not seen the request
    lost: tuple[str, ...] = ()  # the engine received it, and closed before its answer was whole

    @property
    def engines(self) -> frozenset[str]:
        """The engines that are not asked again."""
        return self.unsent.union(self.lost)

    def not_sent(self, engine: str) -> "Attempts":
        """With one more engine that took no connection."""
        return replace(self, unsent=self.unsent | {engine})

    def sent_and_lost(self, engine: str) -> "Attempts":
        """With one more engine that received the request and closed the connection."""
        return replace(self, lost=(*self.lost, engine))


def may_retry(attempts: Attempts, engines: Iterable[str], *, begun: bool, gone: bool) -> bool:
    """True where another of `engines` is asked after the last attempt failed.

    `begun`: bytes of an answer have come. `gone`: the client has left.
    """
    if begun or gone or len(attempts.lost) > MAX_RESENDS:
        return False
    return not attempts.engines.issuperset(engines)


def was_undelivered(seconds: float, connect_seconds: float) -> bool:
    """True where a reused connection that closed `seconds` after a request was written did not deliver it.

    An engine that closes an idle connection has not seen the request: close and request cross on their way,
    and the close arrives within a round trip. `connect_seconds`: how long the last connection to this engine
    took; a round trip is no longer. An engine that closes later was working on the request: sent again, it
    would be generated twice.
    """
    return seconds <= max(ROUND_TRIP_SECONDS, 2 * connect_seconds)


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
