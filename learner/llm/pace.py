"""Requests and tokens per minute: a window that slides over the last 60 seconds, on an injected clock.

No caller waits here, as in the gate: a full window is a reason to leave the turn for later. Calls in flight
count with an estimate until their tokens are known, so that many at once cannot overrun the limit.
"""

import threading
from collections import deque
from dataclasses import dataclass
from datetime import datetime, timedelta

from learner.llm.gate import Clock

WINDOW = timedelta(seconds=60)


@dataclass(slots=True)
class RecentCall:
    """A call of the last minute; `tokens` is an estimate until they are known."""

    at: datetime
    tokens: int


class Pace:
    """Shared by all threads that call one channel. A limit of 0 is none."""

    def __init__(self, section: str, requests: int, tokens: int, clock: Clock) -> None:
        self._section, self._requests, self._tokens, self._clock = section, requests, tokens, clock
        self._lock = threading.Lock()
        self._calls: deque[RecentCall] = deque()

    def full(self) -> str | None:
        """Which limit is reached, in a sentence; None where another call may be made."""
        with self._lock:
            return self._full()

    def enter(self, tokens: int) -> RecentCall | None:
        """Enters a call of about `tokens` tokens; None where the window is full."""
        with self._lock:
            if self._full() is not None:
                return None
            call = RecentCall(self._clock(), tokens)
            if self._requests or self._tokens:
                self._calls.append(call)
            return call

    def adjust(self, call: RecentCall, tokens: int) -> None:
        """Replaces the estimate of a call by the tokens that it took."""
        with self._lock:
            call.tokens = tokens

    def _full(self) -> str | None:
        now = self._clock()
        while self._calls and self._calls[0].at <= now - WINDOW:
            self._calls.popleft()
        if not self._calls:
            return None
        until = self._calls[0].at + WINDOW
        if self._requests and len(self._calls) >= self._requests:
            return self._sentence("requests_per_minute", self._requests, until)
        if self._tokens and sum(call.tokens for call in self._calls) >= self._tokens:
            return self._sentence("tokens_per_minute", self._tokens, until)
        return None

    def _sentence(self, name: str, limit: int, until: datetime) -> str:
        return f"{self._section}.{name} ({limit}) is reached; next call at {until:%H:%M:%S} UTC"
