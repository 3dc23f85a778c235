"""The health of one worker: alive, ready, and the warnings for an operator."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from gateway.relay.errors import UpstreamError
from gateway.relay.metrics import Metrics
from gateway.relay.router import Router
from gateway.relay.upstream import Request, Upstreams
from gateway.routes import EngineRoute
from gateway.spool.writer import WARN_SHARE, SpoolWriter

_PROBE_SECONDS = 2.0
_CAPTURE_RETRY_SECONDS = 300.0


class Health:
    """Collects what turns notice of the engines, and answers /healthz and /readyz."""

    def __init__(
        self,
        spool: SpoolWriter,
        router: Router,
        upstreams: Upstreams,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spool = spool
        self._router = router
        self._upstreams = upstreams
        self._clock = clock
        self._capturing: dict[str, bool] = {}  # engine → whether its last answer brought token ids
        self._refused_until: dict[str, float] = {}
        self.metrics = metrics
        self.turns: set[asyncio.Task[None]] = set()

    def captures(self, url: str) -> bool:
        """Returns True where an engine is known to give token ids: then a 400 is about the request itself."""
        return self._capturing.get(url, False)

    def may_capture(self, url: str) -> bool:
        """Returns True where an engine may be asked for token ids: it has not refused them lately."""
        return self._refused_until.get(url, 0.0) <= self._clock()

    def saw_ids(self, url: str, seen: bool) -> None:
        """An answer of `url` came to its end, with or without the token ids asked for."""
        self._capturing[url] = seen

    def capture_refused(self, url: str) -> None:
        """An engine refused the capture fields and took the same request without them."""
        self._capturing[url] = False
        self._refused_until[url] = self._clock() + _CAPTURE_RETRY_SECONDS

    def alive(self) -> dict[str, Any]:
        """The body of /healthz: the process serves. `warnings` make it degraded, never dead."""
        warnings = self.warnings()
        return {
            "status": "degraded" if warnings else "ok",
            "warnings": warnings,
            "turns_in_flight": len(self.turns),
            "turns_lost": self._spool.lost,
            "spool_used_share": round(self._spool.used_share, 4),
        }

    async def ready(self) -> dict[str, Any]:
        """The body of /readyz: `ready`, the reasons where it is not, warnings, and each engine."""
        routes = self._router.routes()
        reasons: list[str] = []  # a spool that is full is none: users are served all the same
        known = self._router.reconciled
        states = await asyncio.gather(*(self._state(engine, known) for engine in routes.engines))
        if "ready" not in states:
            listed = ", ".join(f"{e.url} is {s}" for e, s in zip(routes.engines, states, strict=True))
            reasons.append(f"no engine is ready: {listed or 'none is configured'}")
        engines = [
            {"url": engine.url, "state": state, "dialect": engine.capture_dialect, "reason": engine.reason}
            for engine, state in zip(routes.engines, states, strict=True)
        ]
        return {"ready": not reasons, "reasons": reasons, "warnings": self.warnings(), "engines": engines}

    def warnings(self) -> list[str]:
        """The sentences about what works, but should not stay so."""
        warnings = [
            f"no token ids from {url}: its turns cannot be trained"
            for url, capturing in self._capturing.items()
            if not capturing
        ]
        engines = self._router.routes().engines
        warnings += [f"{e.url}: {e.reason}" for e in engines if e.state == "ready" and e.reason is not None]
        if self._spool.used_share >= WARN_SHARE:
            warnings.append(f"the spool is {self._spool.used_share:.0%} full: is the drainer running?")
        standstill = self.metrics.standstill(time.time())
        if standstill is not None:
            warnings.append(f"turns wait in the spool and the drainer does not advance: {standstill}")
        if self._spool.problem is not None:
            warnings.append(f"turns are not recorded: {self._spool.problem}")
        if self._spool.lost:
            warnings.append(f"{self._spool.lost} turns were served and not recorded")
        return warnings

    async def _state(self, engine: EngineRoute, known: bool) -> str:
        if known:
            return engine.state
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                reply = await self._upstreams.pool(engine.url).send(Request("GET", "/health", []))
                async with reply:
                    await reply.body()
        except TimeoutError:
            return "silent"
        except UpstreamError as error:
            return f"unreachable ({error.message})"
        # A plain server may have no such path: who answers at all is ready.
        return "ready" if reply.status < 500 else f"not ready (it answered {reply.status})"
