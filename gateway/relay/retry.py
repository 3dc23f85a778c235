"""Decides when a request that got no answer is sent again, and to which engines. Pure.

A request that no engine has received may go to any other. One that was sent and then lost (the engine closed
the connection before its answer was whole) may be what the engine died of: it goes to one other engine, once.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

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
