"""Plans which adapters an engine has besides the live one. Pure.

They are on trial, pinned by sessions, or not yet done with their last requests. An engine runs only so many
adapters at once, the base model among them. One more than that waits until another has no request left, and
so do the base model's own users (39 s were measured). So no more are ever loaded than run at once, with a
place kept for the base model; sessions whose adapter gets no place are served by the live version.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.reconcile.decide import Target, adapter_version

#: Time after the last request was sent to an adapter until it is unloaded. Unloading waits for the adapter's
#: requests and keeps others from being loaded meanwhile, so it does not begin early.
UNLOAD_AFTER_SECONDS = 60.0
#: The same where a place is needed: long enough for every worker to have read the routes file.
UNLOAD_SOON_SECONDS = 5.0
#: SGLang's own default of --max-loras-per-batch.
DEFAULT_PLACES = 8


@dataclass(frozen=True, slots=True)
class ExtraAdapters:
    """Versions that sessions get instead of the live one, and which sessions do."""

    trial: Target | None = None
    share: float = 0.0  # of the sessions, for the trial
    pins: Mapping[str, int] = field(default_factory=dict)  # session key → version
    pinned: Mapping[int, Target] = field(default_factory=dict)  # the versions that `pins` names

    def targets(self) -> list[Target]:
        """The most important first: the trial, then the newest of those that sessions began with."""
        first = [] if self.trial is None else [self.trial]
        rest = [target for _, target in sorted(self.pinned.items(), reverse=True) if target != self.trial]
        return first + [target for target in rest if target.adapter is not None]


@dataclass(frozen=True, slots=True)
class EngineAdapters:
    """The adapters that an engine has now."""

    names: frozenset[str]  # all that are loaded; others than the policy's own are counted and left alone
    policy: str
    places: int  # adapters that run at once, the base model among them
    unused: Mapping[str, float] = field(default_factory=dict)  # name → seconds without a new request
    ready: frozenset[str] = frozenset()  # loaded and verified

    @property
    def room(self) -> int:
        """How many adapters may be loaded."""
        return max(1, self.places - 1)


@dataclass(frozen=True, slots=True)
class Plan:
    """The adapters to load, to unload, and to send traffic to."""

    load: tuple[Target, ...]
    unload: tuple[str, ...]  # oldest first; the caller does one at a time
    serve: frozenset[str]  # extra adapters that get traffic once they are loaded


def plan(engine: EngineAdapters, live: Target, extra: ExtraAdapters) -> Plan:
    """What to load, unload and serve so that as many of `extra` as fit are served besides `live`."""
    names, room = engine.names, engine.room
    keep = [live.adapter] if live.adapter is not None else []
    chosen = [target for target in extra.targets() if target.adapter not in keep][: room - len(keep)]
    serve = frozenset(target.adapter for target in chosen if target.adapter is not None)
    lacking = [target for target in chosen if target.adapter not in names]
    free = room - len(names | frozenset(keep))
    needed = len(lacking) > free or len(names | frozenset(keep)) > room
    after = UNLOAD_SOON_SECONDS if needed else UNLOAD_AFTER_SECONDS
    idle = [name for name in _own(names, engine.policy) if name not in serve and name not in keep]
    unload = tuple(name for name in idle if engine.unused.get(name, 0.0) >= after)
    unverified = [target for target in chosen if target.adapter in names - engine.ready]
    return Plan((*unverified, *lacking[: max(0, free)]), unload, serve)


def has_room(engine: EngineAdapters, target: Target) -> bool:
    """Returns True when the live adapter can be loaded without more adapters than the engine runs at once."""
    return target.adapter in engine.names or len(engine.names) < engine.room


def to_make_room(engine: EngineAdapters, serving: str | None, extra: ExtraAdapters) -> str | None:
    """The adapter to unload for a new live one: the oldest without sessions, else the least important.

    None where only what serves now is there.
    """
    names = [name for name in _own(engine.names, engine.policy) if name != serving]
    asked = [target.adapter for target in extra.targets()]
    unasked = [name for name in names if name not in asked]
    return next((name for name in (*unasked, *reversed(asked)) if name in names), None)


def _own(names: frozenset[str], policy: str) -> list[str]:
    """The policy's adapters in the order of their versions."""
    found = [(version, name) for name in names if (version := adapter_version(name, policy)) is not None]
    return [name for _, name in sorted(found)]
