"""When the channel to an outside model may be used: one gate for all threads, on an injected clock.

    untested ──ok──► open        one call at a time until one has come back: a wrong key costs one call
       ▲  └─fault─► closed until a moment, with the sentence that says why
       └──────────────┘ (the moment has come)

No caller waits for it to open: a closed gate is a reason to leave the turn for later.

Requests and tokens per minute: a window that slides over the last 60 seconds, on an injected clock.

No caller waits here, as in the gate: a full window is a reason to leave the turn for later. Calls in flight
count with an estimate until their tokens are known, so that many at once cannot overrun the limit.

Where an outside model is and how it may be asked; and the sentences for what keeps it from being asked.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Literal

from pydantic import SecretStr

from dukou.settings import learning

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One model behind an OpenAI-compatible address; `section` is the table of config.toml it is from."""

    section: str  # judge | teacher: also the purpose of its calls
    model: str
    api_base: str
    api_key: SecretStr
    api_key_file: str = ""
    timeout: float
    concurrency: int
    temperature: float | None = None
    structured: Literal["auto", "always", "never"] = "auto"
    requests_per_minute: int = 0  # 0: no limit
    tokens_per_minute: int = 0
    usd_per_million: tuple[float, float] = (0.0, 0.0)  # prompt, output; both 0: as LiteLLM knows it

    def key(self) -> str:
        """The key; a file is read anew each time, so that it may rotate. Empty where there is none."""
        if not self.api_key_file:
            return self.api_key.get_secret_value()
        try:
            return Path(self.api_key_file).read_text(encoding="utf-8").strip()
        except OSError:
            return ""


def of_judge(settings: learning.JudgeSettings) -> Access:
    return Access(
        section="judge",
        model=settings.model,
        api_base=settings.api_base,
        api_key=settings.api_key,
        api_key_file=settings.api_key_file,
        timeout=settings.timeout_sec,
        concurrency=settings.concurrency,
        temperature=settings.temperature,
        structured=settings.structured,
        requests_per_minute=settings.requests_per_minute,
        tokens_per_minute=settings.tokens_per_minute,
        usd_per_million=(settings.usd_per_million_in, settings.usd_per_million_out),
    )


def of_teacher(settings: learning.TeacherSettings) -> Access:
    return Access(
        section="teacher",
        model=settings.model,
        api_base=settings.api_base,
        api_key=settings.api_key,
        timeout=settings.timeout_sec,
        concurrency=2,  # demonstrations are never urgent
    )


def misconfigured(access: Access) -> str | None:
    """The sentence that says which setting keeps the model from being asked at all; None where none does."""
    section, key = access.section, access.key()
    for name, value in (("api_base", access.api_base), ("api_key", key)):
        if "${" in value:
            return f"{section}.{name} still holds a literal ${{…}}: the variable it names was not expanded"
    if not key and access.api_key_file:
        return f"{section}.api_key_file {access.api_key_file} is empty or cannot be read"
    if not key:
        return (
            f"{section}.api_key is empty: set the variable it is read from (TAOTOKEN_API_KEY by default), "
            f"or any word where the server asks for no key, or {_otherwise(section)}"
        )
    if not access.api_base.startswith(("http://", "https://")):
        return f"{section}.api_base must begin with http:// or https://"
    return None


def refusal(access: Access, status: str) -> str:
    """What a permanent error means, and which setting to change."""
    section, model = access.section, access.model
    key = (
        f"{section}.api_key_file"
        if access.api_key_file
        else f"{section}.api_key (TAOTOKEN_API_KEY by default)"
    )
    meaning = {
        "http_401": f"the key was refused: {key} is wrong or expired",
        "http_402": f"the account has no money or budget left: {section}.api_key names the account",
        "http_403": f"the key may not use {section}.model {model}",
        "http_404": f"there is no {section}.model {model} at {section}.api_base {access.api_base} "
        "(which is used as it is)",
    }[status]
    return f"the {section} is paused (HTTP {status.removeprefix('http_')}): {meaning}"


def _otherwise(section: str) -> str:
    return "judge.kind = rules" if section == "judge" else "teacher.enable = false"
