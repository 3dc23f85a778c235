"""The routes file as values: which engines there are, what they serve, and which sessions get other versions.

The reconciler writes the file. The relay's workers read it to choose an engine, and a reconciler that has
just started reads what its predecessor knew. Pure: text in, values out. Unknown fields are ignored and
missing ones are filled in, so that workers and reconcilers of two releases understand each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import orjson

from dukou.errors import DukouError

#: `{"parser": …, "grammar": …}`: an engine's tool-call parser and grammar backend; None: it has none.
ToolCalling: TypeAlias = Mapping[str, str | None]

#: How an engine is asked for token ids as long as its dialect is unknown.
DEFAULT_DIALECT: Final = "sglang"


class BadRoutesError(DukouError, ValueError):
    """A text is no routes file."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine was started with. None: unknown."""

    #: Values for sampling fields that a chat request leaves out, by field; empty: it changes none.
    sampling_defaults: Mapping[str, Any] | None = field(default=None, hash=False)
    vocab_size: int | None = None  # number of token ids that its model knows
    tool_calling: ToolCalling | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True)
class EngineRoute:
    """One engine: its state, the versions that it serves, and how to ask for them.

    While `version_low` differs from `version_high`, either version may answer. None: unknown.
    """

    url: str
    state: str = "ready"  # ready | starting | paused | updating | dead
    version_low: int | None = None
    version_high: int | None = None
    adapter: str | None = None  # name on the engine of the live version's adapter
    dialect: str | None = None  # sglang | vllm | plain: the fields that ask it for token ids
    reason: str | None = None  # why it is not ready; of a ready engine, what its answers lack
    #: Version → adapter, for sessions that get another version than the live one.
    beside: Mapping[int, str] = field(default_factory=dict, hash=False)
    facts: EngineFacts = field(default_factory=EngineFacts)
    #: The versions are those of one request and do not move with the engine. Not in the file.
    exact: bool = False

    @property
    def capture_dialect(self) -> str:
        """The dialect in which it is asked for token ids, also where its own is unknown."""
        return self.dialect or DEFAULT_DIALECT


@dataclass(frozen=True, slots=True)
class OtherVersions:
    """Which sessions get another version than the live one."""

    trial: int | None = None  # the version on trial
    share: float = 0.0  # of the conversations, for the trial
    pins: Mapping[str, int] = field(default_factory=dict)  # tenant/session → the version it began with


@dataclass(frozen=True, slots=True)
class Routes:
    """The content of one routes file."""

    engines: tuple[EngineRoute, ...] = ()
    others: OtherVersions = field(default_factory=OtherVersions)
    policy: str = ""
    model: str = ""  # the name under which clients ask for the policy
    written_ns: int = 0  # nanoseconds since 1970

    @property
    def vocab_size(self) -> int | None:
        """Number of token ids that every engine of known vocabulary knows; None: no engine's is known."""
        sizes = (engine.facts.vocab_size for engine in self.engines)
        return min((size for size in sizes if size is not None), default=None)


def dump(routes: Routes) -> bytes:
    """The text of the routes file: indented JSON."""
    others = routes.others
    trial = None if others.trial is None else {"version": others.trial, "share": others.share}
    content = {
        "policy": routes.policy,
        "model": routes.model,
        "written_ns": routes.written_ns,
        "trial": trial,
        "pins": others.pins,
        "engines": [_engine_to_json(engine) for engine in routes.engines],
    }
    return orjson.dumps(content, option=orjson.OPT_INDENT_2)


def load(text: bytes) -> Routes:
    """Reads what `dump` wrote.

    Raises:
        BadRoutesError: it is no JSON, has no list of engines, or an engine has no URL or no state.
    """
    try:
        content = orjson.loads(text)
        engines = tuple(_engine_from_json(entry) for entry in content["engines"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadRoutesError(f"no routes file: {error!r}") from error
    trial = _object(content.get("trial")) or {}
    others = OtherVersions(
        _whole(trial.get("version")), trial.get("share", 0.0), _object(content.get("pins")) or {}
    )
    policy, model = _text(content.get("policy")) or "", _text(content.get("model")) or ""
    return Routes(engines, others, policy, model, _whole(content.get("written_ns")) or 0)


def _engine_to_json(engine: EngineRoute) -> dict[str, Any]:
    return {
        "url": engine.url,
        "state": engine.state,
        "reason": engine.reason,
        "version_low": engine.version_low,
        "version_high": engine.version_high,
        "adapter": engine.adapter,
        "dialect": engine.dialect,
        "beside": {str(version): adapter for version, adapter in engine.beside.items()},
        "sampling_defaults": engine.facts.sampling_defaults,
        "vocab_size": engine.facts.vocab_size,
        "tool_calling": engine.facts.tool_calling,
    }


def _engine_from_json(entry: Mapping[str, Any]) -> EngineRoute:
    facts = EngineFacts(
        sampling_defaults=_object(entry.get("sampling_defaults")),
        vocab_size=_whole(entry.get("vocab_size")),
        tool_calling=_object(entry.get("tool_calling")),
    )
    return EngineRoute(
        url=entry["url"].rstrip("/"),
        state=entry["state"],
        version_low=_whole(entry.get("version_low")),
        version_high=_whole(entry.get("version_high")),
        adapter=_text(entry.get("adapter")),
        dialect=_text(entry.get("dialect")),
        reason=_text(entry.get("reason")),
        beside={int(version): adapter for version, adapter in (entry.get("beside") or {}).items()},
        facts=facts,
    )


def _object(value: object) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None
