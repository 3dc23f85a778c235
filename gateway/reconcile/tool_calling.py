"""How an engine reads tool calls out of answers: its parser, and who makes a grammar of strict tools.

Both are as it was started. They say which tokens of an answer were masked (`gateway/drain/strict.py`).
"""

import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

from gateway.reconcile.control import Control, ControlError, Health

#: `{"parser": …, "grammar": …}`; None where it has none, or does not say.
ToolCalling: TypeAlias = Mapping[str, str | None]

_AGAIN_SECONDS = 10.0  # after which an engine that could not say is asked again


class ToolCallings:
    """What each engine says: asked once in each of its lives."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, ToolCalling] = {}
        self._again_at: dict[str, float] = {}

    def look(self, control: Control, health: Health, dialect: str | None) -> None:
        """Asks an SGLang that is ready and not known yet; what is gone may come back as another."""
        if health in (Health.DEAD, Health.STARTING):
            self._known.pop(control.url, None)
        if health is not Health.READY or dialect != "sglang" or control.url in self._known:
            return
        if self._clock() < self._again_at.get(control.url, self._clock()):
            return
        try:
            self._known[control.url] = control.tool_calling()
        except ControlError:  # unknown for now: what has strict tools is not trained
            self._again_at[control.url] = self._clock() + _AGAIN_SECONDS

    def known(self) -> dict[str, ToolCalling]:
        """By engine URL, of the engines that are known."""
        return dict(self._known)
