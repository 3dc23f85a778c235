"""Makes every engine match the live pointer, and keeps the routes file true. A process of its own.

The decisions are in decide.py, the procedure in publish.py; here they meet the engines, Postgres and the
clock. No user waits for any of it, except while an engine swaps its weights.
"""

import fcntl
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gateway.reconcile import routes_file
from gateway.reconcile.books import Books, Live
from gateway.reconcile.checkpoint import BadCheckpointError, check
from gateway.reconcile.control import Control, ControlError, Health
from gateway.reconcile.decide import (
    Act,
    Decision,
    Failed,
    Loaded,
    Memory,
    Outcome,
    Refused,
    Route,
    View,
    after,
    decide,
    gives_up,
    retirable,
)
from gateway.reconcile.probe import BadProbeError, Prompt, parse, vocabulary
from gateway.reconcile.publish import load, verify
from gateway.reconcile.tensors import read_folder
from store import database
from store.config_model import Config
from store.paths import StatePaths
from store.publications import Publication

_log = logging.getLogger(__name__)
_LEASE = 15.0  # seconds
_LOAD_LEASE = 900.0  # longer than a weight load can take
_BEAT = 2.0
_ROUNDS = 6  # acts in one tick: resume, load, refuse, load the ancestor, and a last look


class Reconciler:
    """One tick looks at every engine once and acts until each is as it should be, or must wait."""

    def __init__(
        self,
        config: Config,
        books: Books,
        controls: Sequence[Control],
        routes: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._books = books
        self._controls = controls
        self._path = routes
        self._clock = clock
        remembered = routes_file.remember(routes)
        self._memories = {control.url: remembered.get(control.url, Memory()) for control in controls}
        self._routes: dict[str, Route] = {}
        self._seen: dict[str, tuple[Route, float]] = {}
        self._beat_at = 0.0

    def tick(self) -> dict[str, Route]:
        """Returns the routes as they are written, by engine URL."""
        for control in self._controls:
            if self._books.owns(control.url, _LEASE):
                self._reconcile(control)
            else:
                self._follow(control)
        self._beat()
        return dict(self._routes)

    def _reconcile(self, control: Control) -> None:
        for _ in range(_ROUNDS):
            live = self._books.live()
            view = look(control)
            before = self._memories[control.url]
            decision = decide(view, before, None if live is None else live.target, self._clock())
            self._tell(control.url, decision.route)
            if decision.act is Act.WAIT or live is None:
                self._memories[control.url] = decision.memory
                return
            self._act(control, view, before, decision, live)

    def _act(self, control: Control, view: View, before: Memory, decision: Decision, live: Live) -> None:
        if decision.act is Act.RESUME:
            _resume(control)
            self._memories[control.url] = decision.memory
            return
        self._books.owns(control.url, _LOAD_LEASE)
        began = self._clock()
        outcome = self._bring(control, view, decision.act, live)
        now = self._clock()
        memory = after(decision.memory, before, live.target, outcome, now)
        if isinstance(outcome, Failed) and gives_up(memory, live.target):
            outcome = Refused(f"it failed {memory.failures} times: {outcome.error}", outcome.touched)
            memory = after(decision.memory, before, live.target, outcome, now)
        self._memories[control.url] = memory
        self._record(control, live, outcome, now - began)
        if isinstance(outcome, Loaded):
            self._retire(control, view, live, before)

    def _bring(self, control: Control, view: View, act: Act, live: Live) -> Outcome:
        """Nothing reaches the engine that was not checked."""
        try:
            prompts = _checked(live)
        except (BadCheckpointError, BadProbeError) as error:
            return Refused(str(error), touched=False)
        tolerance = self._config.publish.probe_tolerance
        if act is Act.VERIFY:
            return verify(control, live.target, prompts, tolerance)
        return load(control, view, live.target, prompts, tolerance)

    def _record(self, control: Control, live: Live, outcome: Outcome, seconds: float) -> None:
        version = live.version
        error = None
        if isinstance(outcome, Loaded):
            _log.info("%s serves version %d after %.2f s", control.url, version.version, seconds)
            self._books.verified(live)
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
        self._books.record(publication)
        if isinstance(outcome, Refused) and version.version > 0:
            self._books.refuse(version, outcome.reason)

    def _retire(self, control: Control, view: View, live: Live, before: Memory) -> None:
        keep = frozenset(name for name in (live.target.adapter, before.adapter) if name is not None)
        for name in retirable(view.adapters, self._config.policy.name, keep):
            try:
                control.unload_lora(name)
            except ControlError as error:
                _log.warning("%s keeps the adapter %s for now: %s", control.url, name, error)

    def _follow(self, control: Control) -> None:
        """Another reconciler holds this engine: repeat what it says, as far as one can see oneself."""
        route = self._books.follow(control.url) or Route("starting", "its reconciler has not spoken yet")
        if control.health() is Health.DEAD:
            route = Route("dead", "nobody answers at this address", dialect=route.dialect)
        self._routes[control.url] = route
        routes_file.write(self._path, self._config.policy.name, self._config.engine.served_name, self._routes)

    def _tell(self, url: str, route: Route) -> None:
        """Workers first: an update may begin as soon as this returns."""
        if self._routes.get(url) != route and route.reason is not None:
            _log.info("%s is %s: %s", url, route.state, route.reason)
        self._routes[url] = route
        routes_file.write(self._path, self._config.policy.name, self._config.engine.served_name, self._routes)
        told, at = self._seen.get(url, (None, 0.0))
        if told != route or self._clock() - at >= _BEAT:
            self._seen[url] = (route, self._clock())
            self._books.see(url, route)

    def _beat(self) -> None:
        if self._clock() < self._beat_at:
            return
        self._beat_at = self._clock() + _BEAT
        behind = [f"{url} ({route.reason})" for url, route in self._routes.items() if route.state != "ready"]
        ready = len(self._routes) - len(behind)
        doing = f"{ready} of {len(self._routes)} engines serve"
        self._books.beat(doing, "; ".join(behind) or None)


def look(control: Control) -> View:
    """One look at an engine: nothing here makes it compute."""
    health = control.health()
    if health is not Health.READY:
        return View(health)
    try:
        info = control.model_info()
        if info is None:
            return View(health, "plain")
        return View(health, "sglang", info.weight_version, control.adapters())
    except ControlError:
        return View(Health.SILENT)


def main(config: Config) -> None:
    """Runs until SIGTERM or SIGINT; starts before, and outlives, Postgres and the engines."""
    paths = StatePaths.for_config(config)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with ExitStack() as stack:
        stack.enter_context(_alone(paths.run / "reconciler.lock"))
        key = config.engine.api_key.get_secret_value()
        controls = [stack.enter_context(Control(url, key)) for url in config.engine.urls]
        owner = f"{socket.gethostname()}:{paths.root.resolve()}"
        books = Books(lambda: database.engine(config), config.policy.name, owner)
        stack.callback(books.close)
        reconciler = Reconciler(config, books, controls, paths.routes_file)
        while not stop.is_set():
            reconciler.tick()
            stop.wait(config.publish.poll_interval)


def _checked(live: Live) -> list[Prompt]:
    """The version's probe, once its folder was compared with the base model; version 0 is the base model."""
    if live.version.version == 0:
        return []
    check(Path(live.version.path), live.version.form, live.base)
    if live.version.probe is None:
        return []
    return parse(live.version.probe, vocabulary(read_folder(live.base)))


def _resume(control: Control) -> None:
    try:
        control.continue_()
    except ControlError as error:
        _log.warning("%s stays paused: %s", control.url, error)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Waits until no other reconciler of this state folder runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
