"""Decides what the reconciler does with one engine: values to values, no I/O.

    look ─► View ┐
    Memory ──────┼─► decide ─► Decision: an act (wait | resume | verify | load) and a route for the workers
    Target ──────┘                │
                                  └─ the act's Outcome ─► after ─► Memory

An engine gets traffic only at a version that was verified in this life of the engine. One that restarted
shows another label than remembered; it is `starting` until it was brought to the live version.
"""

import re
from dataclasses import dataclass, replace
from enum import Enum

from dukou.store.processes import State
from dukou.store.versions import Form
from gateway.reconcile.sglang import Health

#: Time without an answer after which a connected engine counts as dead: a busy one may be slow.
DEAD_AFTER_SECONDS = 30.0
#: Failed loads of one version that are its own fault before it is refused: about half a minute of tries.
MAX_TRIES = 5
_LONGEST_RETRY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Target:
    """A version that an engine should serve."""

    version: int
    form: Form
    path: str
    adapter: str | None  # its name on the engine, where the version is an adapter


@dataclass(frozen=True, slots=True)
class View:
    """An engine as one look at it showed it."""

    health: Health
    dialect: str | None = None  # sglang | plain; None: it did not say
    label: str | None = None
    adapters: frozenset[str] = frozenset()
    model_path: str | None = None  # where it has its model from, as it says itself


@dataclass(frozen=True, slots=True)
class Route:
    """What is decided to tell the workers about an engine.

    While `version_low` differs from `version_high`, either version may answer.
    """

    state: State
    reason: str | None = None
    version_low: int | None = None  # None: unknown
    version_high: int | None = None
    adapter: str | None = None
    dialect: str | None = None
    beside: frozenset[str] = frozenset()  # names of adapters that some sessions get instead


@dataclass(frozen=True, slots=True)
class Memory:
    """What is known of an engine between two looks."""

    span: tuple[int, int] | None = (
        None  # equal ends: verified; else an update began, and how it ended is unknown
    )
    adapter: str | None = None
    dialect: str | None = None
    updating: bool = False  # we may have left it paused
    failed: int | None = None  # the version that could not be loaded
    failures: int = 0
    retry_at: float = 0.0  # on the reconciler's clock, in seconds
    error: str | None = None
    silent_since: float | None = None


class Act(Enum):
    WAIT = "wait"
    RESUME = "resume"  # end a pause that we left behind
    VERIFY = "verify"  # it says that it serves the live version: probe it
    LOAD = "load"


@dataclass(frozen=True, slots=True)
class Decision:
    act: Act
    route: Route
    memory: Memory


@dataclass(frozen=True, slots=True)
class Loaded:
    """The engine serves the target: read back and probed."""

    probe: dict[str, object]


@dataclass(frozen=True, slots=True)
class Failed:
    """The target could not be loaded."""

    error: str
    touched: bool  # the weights may be new ones now
    blame: bool  # the version may be the cause


@dataclass(frozen=True, slots=True)
class Refused:
    """The target must never be served."""

    reason: str
    touched: bool
    probe: dict[str, object] | None = None


Outcome = Loaded | Failed | Refused


def adapter_name(policy: str, version: int) -> str:
    """A name is never used for two versions: an engine keeps the old cache under an old name."""
    return f"{policy}-v{version}"


def decide(view: View, memory: Memory, target: Target | None, now: float) -> Decision:
    """`target` None: the live version is unknown, so the engine is left as it is."""
    memory = replace(memory, dialect=view.dialect or memory.dialect)
    if view.health is Health.SILENT:
        return _silent(memory, now)
    memory = replace(memory, silent_since=None)
    if view.health is Health.DEAD:
        return Decision(Act.WAIT, _route(memory, "dead", "nobody answers at this address"), memory)
    if view.health is Health.STARTING:
        return Decision(Act.WAIT, _route(memory, "starting", "it loads its model"), memory)
    if view.health is Health.PAUSED:
        if memory.updating:
            return Decision(Act.RESUME, _route(memory, "updating", "a pause was left behind"), memory)
        return Decision(Act.WAIT, _route(memory, "paused", "somebody paused it"), memory)
    return _decide_answering(view, memory, target, now)


def _decide_answering(view: View, memory: Memory, target: Target | None, now: float) -> Decision:
    if view.dialect == "plain":
        return Decision(Act.WAIT, Route("ready", dialect="plain"), memory)
    if target is None:
        return Decision(Act.WAIT, _as_it_is(view, memory), memory)
    here = _current(view, memory, target)
    if here.state == "ready" and here.version_low == target.version and here.adapter == target.adapter:
        return Decision(Act.WAIT, here, _without_failure(memory))
    if memory.failed == target.version and now < memory.retry_at:
        return Decision(Act.WAIT, here, memory)
    if _claims(view, target):
        return Decision(Act.VERIFY, here, memory)
    if target.adapter is not None:  # the old adapter goes on serving beside it
        return Decision(Act.LOAD, here, memory)
    span = _between(view, memory, target.version)
    route = Route("updating", f"to version {target.version}", *span, dialect=memory.dialect)
    return Decision(Act.LOAD, route, replace(memory, span=span, adapter=None, updating=True))


def waiting(view: View, memory: Memory, target: Target, reason: str) -> Decision:
    """The target has to wait: the engine goes on as it is."""
    memory = replace(memory, dialect=view.dialect or memory.dialect, silent_since=None)
    return Decision(Act.WAIT, replace(_current(view, memory, target), reason=reason), memory)


def serving(memory: Memory) -> Route:
    """The route of an engine that has just been verified."""
    return _route(memory, "ready", None)


def after(memory: Memory, before: Memory, target: Target, outcome: Outcome, now: float) -> Memory:
    """The memory when an act has ended. `before`: the memory before it began."""
    if isinstance(outcome, Loaded):
        return Memory((target.version, target.version), target.adapter, memory.dialect)
    kept = memory if outcome.touched else replace(before, dialect=memory.dialect)
    if isinstance(outcome, Refused):
        return replace(kept, failed=None, failures=0, error=outcome.reason)
    again = before.failed == target.version
    failures = (before.failures if again else 0) + (1 if outcome.blame else 0)
    pause = min(_LONGEST_RETRY_SECONDS, 2.0 ** max(0, failures - 1))
    return replace(kept, failed=target.version, failures=failures, retry_at=now + pause, error=outcome.error)


def gives_up(memory: Memory, target: Target) -> bool:
    """Returns True where the target failed so often that it should be refused."""
    return target.version > 0 and memory.failed == target.version and memory.failures >= MAX_TRIES


def adapter_version(name: str, policy: str) -> int | None:
    """The version that an adapter's name carries; None where it is no adapter of this policy."""
    match = re.fullmatch(rf"{re.escape(policy)}-v(\d+)", name)
    return int(match[1]) if match else None


def label_version(label: str | None) -> int | None:
    """The version that an engine's label states; `default` is what an engine calls its first weights."""
    if label == "default":
        return 0
    return int(label) if label is not None and re.fullmatch(r"\d+", label) else None


def _silent(memory: Memory, now: float) -> Decision:
    since = now if memory.silent_since is None else memory.silent_since
    memory = replace(memory, silent_since=since)
    if now - since >= DEAD_AFTER_SECONDS:
        reason = f"no answer for {now - since:.0f} s"
        return Decision(Act.WAIT, _route(memory, "dead", reason), memory)
    known = memory.span is not None and not memory.updating
    return Decision(Act.WAIT, _route(memory, "ready" if known else "starting", "slow to answer"), memory)


def _holds(view: View, memory: Memory) -> bool:
    """Returns True where the engine still has what was verified."""
    if memory.updating or memory.span is None:
        return False
    if memory.adapter is not None:
        return memory.adapter in view.adapters and label_version(view.label) == 0
    return label_version(view.label) == memory.span[0]


def _claims(view: View, target: Target) -> bool:
    """Returns True where the engine says that it has the target."""
    if target.adapter is not None:
        return target.adapter in view.adapters and label_version(view.label) == 0
    return label_version(view.label) == target.version


def _current(view: View, memory: Memory, target: Target) -> Route:
    """The route as long as nothing is done."""
    if _holds(view, memory):
        return _route(memory, "ready", memory.error)
    reason = memory.error or f"it is at {view.label}, the live version is {target.version}"
    return _route(replace(memory, adapter=None), "starting", reason)


def _as_it_is(view: View, memory: Memory) -> Route:
    """The route while the live version is unknown: the engine serves the version that it states."""
    if _holds(view, memory):
        return _route(memory, "ready", "the live version is unknown")
    version = label_version(view.label)
    return Route("ready", "the live version is unknown", version, version, dialect=memory.dialect)


def _between(view: View, memory: Memory, version: int) -> tuple[int, int]:
    """Every version that may answer while an update runs."""
    stated = label_version(view.label)
    ends = [version, *(memory.span or ()), *([] if stated is None else [stated])]
    return min(ends), max(ends)


def _route(memory: Memory, state: State, reason: str | None) -> Route:
    low, high = memory.span or (None, None)
    return Route(state, reason, low, high, memory.adapter, memory.dialect)


def _without_failure(memory: Memory) -> Memory:
    return replace(memory, failed=None, failures=0, error=None)
