"""When the channel to an outside model may be used: one gate for all threads, on an injected clock.

    untested ──ok──► open        one call at a time until one has come back: a wrong key costs one call
       ▲  └─fault─► closed until a moment, with the sentence that says why
       └──────────────┘ (the moment has come)

No caller waits for it to open: a closed gate is a reason to leave the turn for later.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

log = logging.getLogger(__name__)

Clock = Callable[[], datetime]

REFUSED_SECONDS = 300.0  # until a refused key or an empty account is tried again
OUTAGE_FAULTS = 3  # consecutive faults of the channel that close it
OUTAGE_SECONDS = (5.0, 300.0)  # first and longest closure; it doubles
RATE_LIMIT_SECONDS = 10.0  # where a 429 does not say
LONGEST_RATE_LIMIT = 3_600.0


class Gate:
    """Shared by all threads that call one channel."""

    def __init__(self, clock: Clock, section: str = "judge") -> None:
        """`section` names the channel in sentences: judge or teacher."""
        self._clock = clock
        self._section = section
        self._changed = threading.Condition()
        self._tested = False
        self._probing = False
        self._until: datetime | None = None
        self._because = ""
        self._faults = 0
        self._outages = 0

    def closed(self) -> str | None:
        """Why no call may be made now; None where one may."""
        with self._changed:
            return self._closed()

    @contextmanager
    def passage(self) -> Iterator[str | None]:
        """Enters for one call. Yields None, or the sentence why the call must not be made.

        While nothing has come back yet, a second caller waits here for the first one's outcome.
        """
        probe = False
        with self._changed:
            self._changed.wait_for(lambda: not (self._probing and self._closed() is None))
            because = self._closed()
            if because is None and not self._tested:
                self._probing = probe = True
        try:
            yield because
        finally:
            if probe:
                with self._changed:
                    self._probing = False
                    self._changed.notify_all()

    def answered(self) -> None:
        """The other side works, whatever it said."""
        with self._changed:
            if self._closed() is not None:  # sent before the gate closed: says nothing about what comes after
                return
            self._tested = True
            self._faults = self._outages = 0
            self._because = ""
            self._changed.notify_all()

    def refused(self, sentence: str) -> None:
        """A permanent error: the key, the model, the account."""
        self._close(REFUSED_SECONDS, sentence)

    def rate_limited(self, retry_after: str | None) -> None:
        """429: no call is made before the time that the other side named."""
        seconds = retry_after_seconds(retry_after, self._clock())
        self._close(
            RATE_LIMIT_SECONDS if seconds is None else seconds,
            f"the {self._section}'s channel is rate-limited (HTTP 429)",
        )

    def failed(self, status: str) -> None:
        """A fault of the channel (time out, 5xx, unreachable); several in a row close it for a while."""
        with self._changed:
            self._faults += 1
            if self._faults < OUTAGE_FAULTS and self._tested:
                return
            first, longest = OUTAGE_SECONDS
            seconds = min(longest, first * 2**self._outages)
            self._outages += 1
        self._close(seconds, f"the {self._section}'s channel does not work ({status})")

    def _closed(self) -> str | None:
        if self._until is None or self._clock() >= self._until:
            return None
        return f"{self._because}; next try at {self._until:%H:%M:%S} UTC"

    def _close(self, seconds: float, because: str) -> None:
        with self._changed:
            until = self._clock() + timedelta(seconds=seconds)
            self._until = until if self._until is None else max(until, self._until)
            self._tested = False
            self._faults = 0
            if because != self._because:
                self._because = because
                log.warning("%s; turns wait, nothing is lost", because)
            self._changed.notify_all()


def retry_after_seconds(header: str | None, now: datetime) -> float | None:
    """Seconds that a Retry-After header asks for, as a number or a date; None where it does not say."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            moment = parsedate_to_datetime(header)
        except ValueError:
            return None
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        seconds = (aware - now).total_seconds()
    return min(max(seconds, 0.0), LONGEST_RATE_LIMIT) if seconds == seconds else None
