"""Adapters beside the live one: on trial, pinned by sessions, or not yet done with their last requests. Pure.

An engine runs only so many adapters at once, the base model among them. One more than that waits until
another has no request left, and so do the base model's own users (39 s were measured). So no more are ever
loaded than run at once, with a place kept for the base model; whoever gets no place is served by the live
version.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gateway.reconcile.decide import Target, adapter_version

#: Seconds after the last request was sent to an adapter until it is unloaded. Unloading waits for the
#: adapter's requests and keeps others from being loaded meanwhile, so there is no hurry …
UNLOAD_AFTER_SECONDS = 60.0
#: … but where a place is needed: long enough for every worker to have read the routes file.
UNLOAD_SOON_SECONDS = 5.0
#: SGLang's own default of --max-loras-per-batch.
DEFAULT_PLACES = 8


@dataclass(frozen=True, slots=True)
class ExtraAdapters:
    """What sessions ask for beside the live version."""

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
class Plan:
    """What to do with an engine's adapters now."""

    load: tuple[Target, ...]
    unload: tuple[str, ...]  # oldest first; the caller does one at a time
    serve: frozenset[str]  # adapters beside the live one that get traffic once they are loaded


def plan(
    loaded: Iterable[str],
    policy: str,
    live: Target,
    extra: ExtraAdapters,
    places: int,
    unused: Mapping[str, float],
    ready: frozenset[str],
) -> Plan:
    """`loaded`: all adapters on the engine; others than the policy's own are counted and left alone.

    `unused`: for how many seconds an adapter has got no new request, where it gets none. `ready`: which are
    loaded and were verified.
    """
    names = frozenset(loaded)
    room = max(1, places - 1)
    keep = [live.adapter] if live.adapter is not None else []
    chosen = [target for target in extra.targets() if target.adapter not in keep][: room - len(keep)]
    serve = frozenset(target.adapter for target in chosen if target.adapter is not None)
    lacking = [target for target in chosen if target.adapter not in names]
    free = room - len(names | frozenset(keep))
    needed = len(lacking) > free or len(names | frozenset(keep)) > room
    after = UNLOAD_SOON_SECONDS if needed else UNLOAD_AFTER_SECONDS
    idle = [name for name in _own(names, policy) if name not in serve and name not in keep]
    unload = tuple(name for name in idle if unused.get(name, 0.0) >= after)
    unverified = [target for target in chosen if target.adapter in names - ready]
    return Plan((*unverified, *lacking[: max(0, free)]), unload, serve)


def has_room(loaded: Iterable[str], target: Target, places: int) -> bool:
    """Whether the live adapter can be loaded without more adapters than the engine runs at once."""
    names = frozenset(loaded)
    return target.adapter in names or len(names) < max(1, places - 1)


def to_make_room(loaded: Iterable[str], policy: str, serving: str | None, extra: ExtraAdapters) -> str | None:
    """The adapter to unload for a new live one: the oldest without sessions, else the least important.

    None where only what serves now is there.
    """
    names = [name for name in _own(frozenset(loaded), policy) if name != serving]
    asked = [target.adapter for target in extra.targets()]
    unasked = [name for name in names if name not in asked]
    return next((name for name in (*unasked, *reversed(asked)) if name in names), None)


def _own(names: frozenset[str], policy: str) -> list[str]:
    """The policy's adapters in the order of their versions."""
    found = [(version, name) for name in names if (version := adapter_version(name, policy)) is not None]
    return [name for _, name in sorted(found)]
