"""Makes every engine match the live pointer, and keeps the routes file up to date.

The decisions are in decide.py, the procedure in publish.py; here they meet the engines, Postgres and the
clock. No user waits for any of it, except while an engine swaps its weights.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from dukou.settings.model import Config
from dukou.store.processes import HEARTBEAT_SECONDS
from dukou.store.publishing import Publication
from dukou.store.versions import BadProbeError
from gateway.reconcile import routes_file
from gateway.reconcile.adapter_plan import ExtraAdapters
from gateway.reconcile.adapters import Adapters, Spawn, in_a_thread
from gateway.reconcile.checkpoint import BadCheckpointError
from gateway.reconcile.decide import (
    Act,
    Decision,
    Failed,
    Loaded,
    Memory,
    Outcome,
    Refused,
    Route,
    Target,
    View,
    after,
    decide,
    gives_up,
    label_version,
    serving,
    waiting,
)
from gateway.reconcile.engine_facts import EngineFactsPoller
from gateway.reconcile.load import Inspected, Inspector, Verification, load, verify
from gateway.reconcile.postgres import LiveVersion, ReconcilerStore
from gateway.reconcile.selftest import SelfTests
from gateway.reconcile.sglang import Control, ControlError, Health
from gateway.routes import Routes

_log = logging.getLogger(__name__)
_LEASE_SECONDS = 15.0
_LOAD_LEASE_SECONDS = 900.0  # longer than a weight load can take
#: Between a load and its verification: users who waited get their first token first.
_VERIFY_DELAY_SECONDS = 0.2
_MAX_ROUNDS = 6  # per engine and tick: resume, load, refuse, load the ancestor, and a last look


@dataclass(frozen=True, slots=True)
class Environment:
    """The clock and the threads of a reconciler; times in seconds."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    spawn: Spawn = in_a_thread


class Reconciler:
    """One tick looks at every engine once and acts until each is as it should be, or must wait."""

    def __init__(
        self,
        config: Config,
        store: ReconcilerStore,
        controls: Sequence[Control],
        routes: Path,
        tests: SelfTests | None = None,
        environment: Environment | None = None,
    ) -> None:
        """`routes`: the file that the workers read. `tests` None: no engine is examined."""
        environment = environment or Environment()
        self._config = config
        self._store = store
        self._controls = controls
        self._path = routes
        self._clock = environment.clock
        self._sleep = environment.sleep
        self._verification = Verification(
            Inspector(checksums=config.publish.checksums), config.publish.probe_tolerance
        )
        self._tests = tests
        self._facts = EngineFactsPoller(environment.clock)
        remembered = routes_file.remember(routes)
        self._memories = {control.url: remembered.get(control.url, Memory()) for control in controls}
        self._adapters = {
            control.url: Adapters(control, config.policy.name, environment.spawn, environment.clock)
            for control in controls
        }
        self._extra = ExtraAdapters()
        self._routes: dict[str, Route] = {}
        self._seen: dict[str, tuple[Route, float]] = {}
        self._beat_at = 0.0

    def tick(self) -> dict[str, Route]:
        """Returns the routes as they are written, by engine URL."""
        for control in self._controls:
            if self._store.owns(control.url, _LEASE_SECONDS):
                self._reconcile(control)
            else:
                self._follow(control)
        self._beat()
        return dict(self._routes)

    def _reconcile(self, control: Control) -> None:
        for _ in range(_MAX_ROUNDS):
            live = self._store.live()
            self._extra = self._extra if live is None else live.extra
            view = look(control)
            self._facts.look(control, view.health, view.dialect)
            self._facts.vocabularies.saw(control.url, view.model_path, None if live is None else live.base)
            before = self._memories[control.url]
            decision = self._decide(control, view, before, live)
            if decision.act is Act.WAIT or live is None:
                self._memories[control.url] = decision.memory
                self._tell(control.url, self._with_others(control, view, decision.route, live))
                return
            if decision.act is Act.RESUME:
                self._tell(control.url, decision.route)
                _resume(control)
                self._memories[control.url] = decision.memory
            else:
                self._act(control, view, before, decision, live)

    def _decide(self, control: Control, view: View, before: Memory, live: LiveVersion | None) -> Decision:
        decision = decide(view, before, None if live is None else live.target, self._clock())
        if live is None or decision.act is not Act.LOAD:
            return decision
        hindrance = None
        if live.target.adapter is not None:
            adapters = self._adapters[control.url]
            hindrance = adapters.make_room(view, live.target, before.adapter, live.extra)
        elif not self._store.may_swap(_LOAD_LEASE_SECONDS):
            hindrance = "another engine swaps its weights"
        return decision if hindrance is None else waiting(view, before, live.target, hindrance)

    def _with_others(self, control: Control, view: View, route: Route, live: LiveVersion | None) -> Route:
        """The route with the adapters that some sessions get instead of the live version."""
        adapters = self._adapters[control.url]
        if view.health in (Health.DEAD, Health.STARTING):
            adapters.forget()
        served = live is not None and (live.target.adapter or live.extra.targets() or view.adapters)
        if live is None or not served or view.health is not Health.READY or label_version(view.label) != 0:
            return route
        beside = adapters.tend(view, live.target, live.extra, lambda *asked: self._bring_beside(live, *asked))
        return replace(route, beside=beside)

    def _act(
        self, control: Control, view: View, before: Memory, decision: Decision, live: LiveVersion
    ) -> None:
        """All that takes time and needs no engine comes before the workers hear of a load, or after it."""
        self._store.owns(control.url, _LOAD_LEASE_SECONDS)
        try:
            ready = self._prepared(control, view, decision.act, live)
            if not isinstance(ready, Refused):
                self._see(control.url, decision.route)
                self._announce(control.url, decision.route)
            began = self._clock()
            outcome = (
                ready if isinstance(ready, Refused) else self._bring(control, view, decision.act, live, ready)
            )
            now = self._clock()
            memory = after(decision.memory, before, live.target, outcome, now)
            if isinstance(outcome, Loaded):
                self._announce(control.url, serving(memory))
        finally:
            self._store.swapped()
        if isinstance(outcome, Failed) and gives_up(memory, live.target):
            outcome = Refused(f"it failed {memory.failures} times: {outcome.error}", outcome.touched)
            memory = after(decision.memory, before, live.target, outcome, now)
        self._memories[control.url] = memory
        self._record(control, live, outcome, now - began)

    def _bring_beside(self, live: LiveVersion, control: Control, view: View, target: Target) -> Outcome:
        """A version that is not live, for the sessions that get it."""
        beside = replace(live, version=live.versions[target.version], target=target)
        began = self._clock()
        ready = self._prepared(control, view, Act.LOAD, beside)
        if isinstance(ready, Refused):
            outcome: Outcome = ready
        else:
            outcome = self._bring(control, view, Act.LOAD, beside, ready)
        self._record(control, beside, outcome, self._clock() - began)
        return outcome

    def _prepared(self, control: Control, view: View, act: Act, live: LiveVersion) -> Inspected | Refused:
        """Nothing reaches an engine that was not checked."""
        try:
            version = self._verification.inspector.inspect(live.version, live.base)
        except (BadCheckpointError, BadProbeError) as error:
            return Refused(str(error), touched=False)
        if act is Act.LOAD and live.target.adapter is None:
            has_base = label_version(view.label) == 0
            self._verification.inspector.prepare(control, version, live.base, has_base=has_base)
        return version

    def _bring(
        self, control: Control, view: View, act: Act, live: LiveVersion, version: Inspected
    ) -> Outcome:
        if act is Act.LOAD:
            admit = partial(self._admit, control.url, live.target, view.dialect)
            return load(control, view, live.target, version, self._verification, admit)
        if live.version.version == 0:
            return Loaded({"missing": "the base model"})
        return verify(control, live.target, version, self._verification)

    def _admit(self, url: str, target: Target, dialect: str | None) -> None:
        """Users wait for the load alone. Where another engine serves them, this one is verified first; else
        what runs on it goes on under the new weights anyway, and so may the rest.
        """
        if not any(other != url and route.state == "ready" for other, route in self._routes.items()):
            version = target.version
            self._announce(url, Route("ready", "being verified", version, version, None, dialect))
            self._sleep(_VERIFY_DELAY_SECONDS)

    def _record(self, control: Control, live: LiveVersion, outcome: Outcome, seconds: float) -> None:
        version = live.version
        error = None
        if isinstance(outcome, Loaded):
            _log.info("%s serves version %d after %.2f s", control.url, version.version, seconds)
            if live.version.status == "live":
                self._store.verified(live)
        else:
            error = outcome.error if isinstance(outcome, Failed) else outcome.reason
            _log.warning("%s does not take version %d: %s", control.url, version.version, error)
        publication = Publication(
            policy_id=version.policy_id,
            version=version.version,
            engine=control.url,
            status="loaded" if error is None else "failed",
            error=error,
            reported_version=look(control).label,
            probe={"missing": "not reached"} if isinstance(outcome, Failed) else outcome.probe,
            seconds=seconds,
        )
        self._store.record(publication)
        if isinstance(outcome, Refused) and version.version > 0:
            self._store.refuse(version, outcome.reason)

    def _follow(self, control: Control) -> None:
        """Another reconciler holds this engine: repeat what it says, as far as one can see oneself."""
        live = self._store.live()
        self._extra = self._extra if live is None else live.extra
        route = self._store.follow(control.url) or Route("starting", "its reconciler has not spoken yet")
        health = control.health()
        self._facts.look(control, health, route.dialect)
        if health is Health.DEAD:
            route = Route("dead", "nobody answers at this address", dialect=route.dialect)
            self._facts.vocabularies.forget(control.url)
        elif health is Health.READY and not self._facts.vocabularies.knows(control.url):
            base = None if live is None else live.base
            self._facts.vocabularies.saw(control.url, look(control).model_path, base)
        self._routes[control.url] = self._facts.with_reason(control.url, route)
        self._write_routes()

    def _tell(self, url: str, route: Route) -> None:
        self._announce(url, route)
        self._see(url, route)

    def _announce(self, url: str, route: Route) -> None:
        """Tells the workers: an update may begin as soon as this returns."""
        if self._tests is not None:
            route = self._tests.told(url, route)
        route = self._facts.with_reason(url, route)
        if self._routes.get(url) != route and route.reason is not None:
            _log.info("%s is %s: %s", url, route.state, route.reason)
        self._routes[url] = route
        self._write_routes()

    def _see(self, url: str, route: Route) -> None:
        """Tells Postgres, and so the other gateways."""
        told, at = self._seen.get(url, (None, 0.0))
        if told != route or self._clock() - at >= HEARTBEAT_SECONDS:
            self._seen[url] = (route, self._clock())
            self._store.see(url, route)

    def _write_routes(self) -> None:
        policy = self._config.policy.name
        engines = (
            routes_file.engine_route(url, route, self._facts.facts(url), policy)
            for url, route in self._routes.items()
        )
        others = routes_file.other_versions(self._extra)
        routes = Routes(tuple(engines), others, policy, self._config.engine.served_name, time.time_ns())
        routes_file.write(self._path, routes)

    def _beat(self) -> None:
        if self._clock() < self._beat_at:
            return
        self._beat_at = self._clock() + HEARTBEAT_SECONDS
        behind = [f"{url} ({route.reason})" for url, route in self._routes.items() if route.state != "ready"]
        ready = len(self._routes) - len(behind)
        doing = f"{ready} of {len(self._routes)} engines serve"
        self._store.beat(doing, "; ".join(behind) or None)


def look(control: Control) -> View:
    """One look at an engine: nothing here makes it compute."""
    health = control.health()
    if health is not Health.READY:
        return View(health)
    try:
        info = control.model_info()
        if info is None:
            return View(health, "plain")
        return View(health, "sglang", info.weight_version, control.adapters(), info.model_path)
    except ControlError:
        return View(Health.SILENT)


def _resume(control: Control) -> None:
    try:
        control.continue_()
    except ControlError as error:
        _log.warning("%s stays paused: %s", control.url, error)
