"""What all turns of one worker share."""

from dataclasses import dataclass

from dukou.settings.serving import StoreFalse
from gateway.relay.health import Health
from gateway.relay.router import Router
from gateway.relay.suspects import Suspects
from gateway.relay.upstream import Headers, Upstreams
from gateway.spool.writer import SpoolWriter


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of a worker that turns use, and the settings that apply to every turn."""

    router: Router
    upstreams: Upstreams
    spool: SpoolWriter
    health: Health
    suspects: Suspects
    engine_key: str  # "" where the engines ask for none
    models: tuple[str, ...]  # the names that clients may ask for
    store_false: StoreFalse
    refused_fields: frozenset[str]  # body fields that only the engine's own components may use

    @property
    def engine_auth(self) -> Headers:
        """The authorization header for requests to engines; empty where they ask for none."""
        return [(b"authorization", b"Bearer " + self.engine_key.encode())] if self.engine_key else []
