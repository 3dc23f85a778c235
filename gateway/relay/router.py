"""Chooses the engine for a request, by the routes file, by how busy each is, and by who used it before."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path

from gateway.relay.errors import BusyError, NoEngineError
from gateway.routes import BadRoutesError, EngineRoute, Routes, load

_LOOK_SECONDS = 0.02  # between looks at the routes file's mtime
_HELD_LOOK_SECONDS = 0.005  # the same while a request is held
_SUSPECT_SECONDS = 1.0  # an engine that could not be reached is the last choice for so long
_SLACK = 8  # requests by which the familiar engine may be busier than the idlest
_REMEMBERED = 10_000  # sessions
_RETRY_AFTER = ((b"retry-after", b"5"),)
HOLD_SECONDS = 60.0

#: States of an engine that will take requests again by itself: they are held, not refused.
_HOLDING = frozenset({"starting", "paused", "updating"})


def choose(
    engines: Iterable[EngineRoute], outstanding: Callable[[str], int], familiar: str | None
) -> EngineRoute | None:
    """The least busy engine; the familiar one where it is not much busier, for its prefix cache."""
    candidates = list(engines)
    if not candidates:
        return None
    idlest = min(candidates, key=lambda engine: outstanding(engine.url))
    for engine in candidates:
        if engine.url == familiar and outstanding(engine.url) <= outstanding(idlest.url) + _SLACK:
            return engine
    return idlest


class Router:
    """One worker's view of the engines."""

    def __init__(
        self,
        file: Path,
        urls: Iterable[str],
        max_held: int,
        *,
        hold_seconds: float = HOLD_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file
        self._fallback = Routes(tuple(EngineRoute(url.rstrip("/")) for url in urls))
        self._max_held = max_held
        self._hold_seconds = hold_seconds
        self._clock = clock
        self._routes = self._fallback
        self._stamp: tuple[int, int] | None = None
        self._look_at = float("-inf")
        self._held = 0
        self._outstanding: dict[str, int] = {}
        self._suspect: dict[str, float] = {}
        self._familiar: OrderedDict[object, str] = OrderedDict()

    def routes(self) -> Routes:
        """The routes now; without a routes file, the configured engines at unknown versions."""
        now = self._clock()
        if now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            self._look()
        return self._routes

    @property
    def reconciled(self) -> bool:
        """The reconciler wrote what `routes` returned last; otherwise the engines' states are unknown."""
        return self._routes is not self._fallback

    def engine(self, url: str) -> EngineRoute | None:
        return next((engine for engine in self.routes().engines if engine.url == url), None)

    async def take(self, affinity: object, excluded: frozenset[str]) -> EngineRoute:
        """An engine for one request, counted as outstanding until `give_back`.

        Raises:
            BusyError: none is ready, and `max_held` requests wait for one already.
            NoEngineError: every engine was changing its weights or starting for `hold_seconds`.
        """
        engine = self._free(affinity, excluded)
        if engine is None:
            engine = await self._held_for(affinity, excluded)
        self._outstanding[engine.url] = self._outstanding.get(engine.url, 0) + 1
        self._remember(affinity, engine.url)
        return engine

    def give_back(self, url: str) -> None:
        self._outstanding[url] -= 1

    def suspect(self, url: str) -> None:
        """This engine could not be reached: others first, for a moment."""
        self._suspect[url] = self._clock() + _SUSPECT_SECONDS

    async def _held_for(self, affinity: object, excluded: frozenset[str]) -> EngineRoute:
        """The first engine that is ready again."""
        if self._held >= self._max_held:
            words = (
                f"every engine is busy changing its weights, and {self._held} requests wait: try again soon"
            )
            raise BusyError(words, headers=_RETRY_AFTER)
        deadline = self._clock() + self._hold_seconds
        self._held += 1
        try:
            while self._clock() < deadline:
                await asyncio.sleep(_HELD_LOOK_SECONDS)
                self._look_at = float("-inf")
                engine = self._free(affinity, excluded)
                if engine is not None:
                    return engine
        finally:
            self._held -= 1
        raise NoEngineError("no engine is ready: try again soon", headers=_RETRY_AFTER)

    def _free(self, affinity: object, excluded: frozenset[str]) -> EngineRoute | None:
        """An engine that takes requests now. Raises NoEngineError where all are excluded."""
        engines = [engine for engine in self.routes().engines if engine.url not in excluded]
        if not engines:
            raise NoEngineError("no engine is ready: try again soon", headers=_RETRY_AFTER)
        return self._choose(engines, affinity)

    def _choose(self, engines: list[EngineRoute], affinity: object) -> EngineRoute | None:
        ready = [engine for engine in engines if engine.state == "ready"]
        if not ready and not any(engine.state in _HOLDING for engine in engines):
            ready = engines  # all dead, it says: it may be out of date, and a refusal tells more than a guess
        now = self._clock()
        trusted = [engine for engine in ready if self._suspect.get(engine.url, now) <= now]
        return choose(
            trusted or ready, lambda url: self._outstanding.get(url, 0), self._familiar.get(affinity)
        )

    def _remember(self, affinity: object, url: str) -> None:
        if affinity is not None:
            self._familiar[affinity] = url
            self._familiar.move_to_end(affinity)
            if len(self._familiar) > _REMEMBERED:
                self._familiar.popitem(last=False)

    def _look(self) -> None:
        try:
            stat = self._file.stat()
            stamp = (stat.st_mtime_ns, stat.st_ino)
            if stamp != self._stamp:
                self._routes = load(self._file.read_bytes())
                self._stamp = stamp
        except FileNotFoundError:
            self._routes, self._stamp = self._fallback, None
        except (OSError, BadRoutesError):
            return  # unreadable: what held before still holds
