"""Requests and tokens per minute: a window that slides over the last 60 seconds, on an injected clock.

Nobody sleeps here, as in the gate: a full window is a reason to leave the turn for later. Calls in flight
count with an estimate until their tokens are known, so that many at once cannot overrun the limit.
"""

import threading
from collections import deque
from dataclasses import dataclass
from datetime import datetime, timedelta

from learner.llm.gate import Clock

WINDOW = timedelta(seconds=60)


@dataclass(slots=True)
class Place:
    """One call in the window."""

    at: datetime
    tokens: int


class Pace:
    """Shared by all threads that call one channel. A limit of 0 is none."""

    def __init__(self, section: str, requests: int, tokens: int, clock: Clock) -> None:
        self._section, self._requests, self._tokens, self._clock = section, requests, tokens, clock
        self._lock = threading.Lock()
        self._places: deque[Place] = deque()

    def full(self) -> str | None:
        """Which limit is reached, in a sentence; None where another call may be made."""
        with self._lock:
            return self._full()

    def enter(self, tokens: int) -> Place | None:
        """Takes a place for a call of about so many tokens; None where the window is full."""
        with self._lock:
            if self._full() is not None:
                return None
            place = Place(self._clock(), tokens)
            if self._requests or self._tokens:
                self._places.append(place)
            return place

    def settle(self, place: Place, tokens: int) -> None:
        """The call's tokens are known now."""
        with self._lock:
            place.tokens = tokens

    def _full(self) -> str | None:
        now = self._clock()
        while self._places and self._places[0].at <= now - WINDOW:
            self._places.popleft()
        if not self._places:
            return None
        until = self._places[0].at + WINDOW
        if self._requests and len(self._places) >= self._requests:
            return self._sentence("requests_per_minute", self._requests, until)
        if self._tokens and sum(place.tokens for place in self._places) >= self._tokens:
            return self._sentence("tokens_per_minute", self._tokens, until)
        return None

    def _sentence(self, name: str, limit: int, until: datetime) -> str:
        return f"{self._section}.{name} ({limit}) is reached; next call at {until:%H:%M:%S} UTC"
