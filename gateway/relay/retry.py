"""When a request that got no answer is sent again, and where. Pure.

A request that no engine has got may go to any other. One that was sent and then lost (the engine closed the
connection before its answer was whole) may be what the engine died of: it goes to one other engine, once.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

#: How often a request is sent again after an engine that had it closed the connection.
RESENDS = 1
#: Seconds that are a round trip on any machine of ours, however busy it is.
RACE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of one request so far, by engine URL."""

    unsent: frozenset[str] = frozenset()  # the engine took no connection: it has not seen the request
    lost: tuple[str, ...] = ()  # the engine got it, and closed before its answer was whole

    @property
    def engines(self) -> frozenset[str]:
        """Those that are not asked again."""
        return self.unsent.union(self.lost)

    def not_sent(self, engine: str) -> "Tried":
        return replace(self, unsent=self.unsent | {engine})

    def sent_and_lost(self, engine: str) -> "Tried":
        return replace(self, lost=(*self.lost, engine))


def goes_on(tried: Tried, engines: Iterable[str], *, begun: bool, gone: bool) -> bool:
    """Whether another of `engines` is asked after the last try failed.

    `begun`: bytes of an answer have come. `gone`: the client has left.
    """
    if begun or gone or len(tried.lost) > RESENDS:
        return False
    return not tried.engines.issuperset(engines)


def is_race(seconds: float, connected_in: float) -> bool:
    """Whether a kept connection that closed `seconds` after a request was written never delivered it.

    An engine that closes a connection for being idle does so without having seen the request: the two cross
    on their way, and that shows within a round trip. `connected_in`: how long the last connection to this
    engine took, in seconds; a round trip is no longer. What closes later was at work on the request: if it
    were sent again as though it had not been, it would be generated twice.
    """
    return seconds <= max(RACE_SECONDS, 2 * connected_in)
