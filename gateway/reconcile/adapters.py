"""Loads and unloads the adapters besides the live one, as beside.py plans it.

Unloading waits for the adapter's last requests, for as long as they take, so it runs in a thread: the
reconciler never waits for it. While it runs, the engine takes no other adapter.
"""

import logging
import threading
from collections.abc import Callable

from gateway.reconcile.adapter_plan import (
    DEFAULT_PLACES,
    EngineAdapters,
    ExtraAdapters,
    has_room,
    plan,
    to_make_room,
)
from gateway.reconcile.decide import Failed, Loaded, Outcome, Target, View
from gateway.reconcile.sglang import Control, ControlError

_log = logging.getLogger(__name__)

#: Brings one target to an engine, checked and probed.
Bring = Callable[[Control, View, Target], Outcome]
#: Begins a piece of work and returns whether it still runs.
Spawn = Callable[[Callable[[], None]], Callable[[], bool]]
_RETRY_SECONDS = 10.0  # after which an adapter that could not be loaded is tried again


def in_a_thread(work: Callable[[], None]) -> Callable[[], bool]:
    """Starts a thread that does not keep the process alive: the next process looks at the engine anew."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread.is_alive


class Adapters:
    """One engine's adapters: which are loaded and verified, and since when each is unused."""

    def __init__(self, control: Control, policy: str, spawn: Spawn, clock: Callable[[], float]) -> None:
        self._control = control
        self._policy = policy
        self._spawn = spawn
        self._clock = clock
        self._places: int | None = None
        self._unused_since: dict[str, float] = {}
        self._verified: set[str] = set()  # in this life of the engine
        self._not_before: dict[str, float] = {}  # when to try an adapter again
        self._running: Callable[[], bool] | None = None

    def forget(self) -> None:
        """The engine is gone: it comes back without any."""
        self._places = None
        self._unused_since.clear()
        self._verified.clear()

    def busy(self) -> bool:
        """Returns True while an adapter is being unloaded, so that none can be loaded."""
        return self._running is not None and self._running()

    def make_room(self, view: View, target: Target, serving: str | None, extra: ExtraAdapters) -> str | None:
        """Why the live adapter cannot be loaded yet; None: it can be."""
        if self.busy():
            return "an old adapter has requests left"
        loaded = EngineAdapters(view.adapters, self._policy, self._limit())
        if has_room(loaded, target):
            return None
        oldest = to_make_room(loaded, serving, extra)
        if oldest is not None:
            self._unload(oldest)
            return f"the adapter {oldest} has to go first"
        return None

    def tend(self, view: View, live: Target, extra: ExtraAdapters, bring: Bring) -> frozenset[str]:
        """Does what is planned, one unload at a time. Returns the extra adapters that may get traffic."""
        now = self._clock()
        self._verified &= view.adapters
        self._verified |= {live.adapter} & view.adapters if live.adapter else set()
        unused = self._unused(view, live, extra, now)
        ready = frozenset(self._verified)
        loaded = EngineAdapters(view.adapters, self._policy, self._limit(), unused, ready)
        planned = plan(loaded, live, extra)
        if not self.busy():
            for target in planned.load:
                self._load(view, target, bring, now)
            if planned.unload:
                self._unload(planned.unload[0])
        return planned.serve & self._verified

    def _load(self, view: View, target: Target, bring: Bring, now: float) -> None:
        name = str(target.adapter)
        if now < self._not_before.get(name, now):
            return
        outcome = bring(self._control, view, target)
        if isinstance(outcome, Loaded):
            self._verified.add(name)
        else:
            self._not_before[name] = now + _RETRY_SECONDS if isinstance(outcome, Failed) else float("inf")

    def _unused(self, view: View, live: Target, extra: ExtraAdapters, now: float) -> dict[str, float]:
        """For how long each adapter has been sent no request, where none is."""
        used = {live.adapter, *(target.adapter for target in extra.targets())}
        self._unused_since = {
            name: self._unused_since.get(name, now) for name in view.adapters if name not in used
        }
        return {name: now - since for name, since in self._unused_since.items()}

    def _unload(self, name: str) -> None:
        self._verified.discard(name)
        self._running = self._spawn(lambda: self._unload_now(name))

    def _unload_now(self, name: str) -> None:
        try:
            self._control.unload_lora(name)
        except ControlError as error:
            _log.warning("%s keeps the adapter %s for now: %s", self._control.url, name, error)

    def _limit(self) -> int:
        if self._places is None:
            try:
                self._places = self._control.server_info().max_loras_per_batch or DEFAULT_PLACES
            except ControlError:
                return DEFAULT_PLACES
        return self._places
