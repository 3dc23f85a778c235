"""What each engine was started with: asked once in each of its lives, and again while a part is unknown."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.reconcile.control import Control, ControlError, Health
from gateway.reconcile.decide import Route
from gateway.reconcile.defaults import UnknownDefaultsError, read
from gateway.reconcile.vocabulary import Vocabularies
from gateway.routes import EngineFacts, ToolCalling

_RETRY_SECONDS = 10.0  # after which an engine of which something is unknown is asked again


@dataclass(frozen=True, slots=True)
class _Known:
    """What one engine said. None: unknown."""

    asked_at: float
    tool_calling: ToolCalling | None = None
    sampling_defaults: Mapping[str, Any] | None = None
    problem: str | None = None  # why its sampling defaults are unknown


class EngineFactsPoller:
    """Asks engines for `/server_info`, one request for all facts, and remembers what they said."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self.vocabularies = Vocabularies()

    def look(self, control: Control, health: Health, dialect: str | None) -> None:
        """Asks an SGLang that is ready and of which something is unknown.

        An engine that is gone is forgotten: it may come back with other settings.
        """
        if health in (Health.DEAD, Health.STARTING):
            self._known.pop(control.url, None)
        if health is Health.READY and dialect == "sglang" and self._is_due(control.url):
            self._known[control.url] = self._ask(control)

    def facts(self, url: str) -> EngineFacts:
        """What is known of the engine at `url`."""
        known = self._known.get(url)
        vocab_size = self.vocabularies.size(url)
        if known is None:
            return EngineFacts(vocab_size=vocab_size)
        return EngineFacts(known.sampling_defaults, vocab_size, known.tool_calling)

    def with_reason(self, url: str, route: Route) -> Route:
        """The route, with the reason where the sampling defaults of a ready engine are unknown."""
        known = self._known.get(url)
        if route.state != "ready" or route.reason is not None or known is None or known.problem is None:
            return route
        reason = f"what it takes for sampling fields that a request leaves out is not known: {known.problem}"
        return replace(route, reason=reason)

    def _is_due(self, url: str) -> bool:
        known = self._known.get(url)
        return known is None or (
            known.sampling_defaults is None and self._clock() - known.asked_at >= _RETRY_SECONDS
        )

    def _ask(self, control: Control) -> _Known:
        now = self._clock()
        try:
            info = control.server_info()
        except ControlError as error:  # what it said earlier in this life still holds
            earlier = self._known.get(control.url, _Known(now))
            return replace(earlier, asked_at=now, problem=str(error))
        tool_calling = {"parser": info.tool_call_parser, "grammar": info.grammar_backend}
        try:
            return _Known(now, tool_calling, read(info))
        except UnknownDefaultsError as error:
            return _Known(now, tool_calling, problem=str(error))
