"""The lines of the learner's log about waiting, and how often each is repeated: pure.

Turns the error that ended a round into (what is waited for, why), and says how long to pause. Pure.
"""

from dataclasses import dataclass, field

from dukou.store.postgres_errors import line_of, missing_part

RESUMED = "submission resumed"


@dataclass(frozen=True)
class SamplesWait:
    """A wait for more samples."""

    needed: int  # samples of a full batch
    current: int  # samples that are there
    oldest: float | None  # seconds since the oldest of them was scored; None: there is none
    kind: str  # name of the reason: the `kind` of a `status.facts.Explanation`
    because: str  # the reason in words

    def line(self) -> str:
        """The line of the log."""
        return (
            f"waiting for samples batch_size={self.needed} current={self.current} "
            f"oldest={age(self.oldest, none='none')} because {self.because}"
        )


@dataclass
class LogThrottle:
    """Repeats a line about waiting only every `interval` seconds; one about another wait is due at once.

    Methods return the line where it is due, else None. `now` is in seconds of a monotonic clock.
    """

    interval: float
    _last_key: object = None
    _logged_at: float = field(default=float("-inf"))
    _resumed: bool = False

    def resumed(self) -> str | None:
        """The line that samples are taken from now on; due once per process."""
        if self._resumed:
            return None
        self._resumed = True
        return RESUMED

    def waiting_for_samples(self, wait: SamplesWait, now: float) -> str | None:
        """The line about a wait for samples; another count or another kind of reason is another wait."""
        return wait.line() if self._due((wait.current, wait.kind), now) else None

    def waiting_for(self, what: str, because: str, now: float) -> str | None:
        """The line about any other wait: for a dependency, or for a stage that failed."""
        return f"waiting for {what} because {because}" if self._due((what, because), now) else None

    def reset(self) -> None:
        """Work was done: the next wait is a new one, and its line is due at once."""
        self._last_key = None

    def _due(self, key: object, now: float) -> bool:
        if key == self._last_key and now - self._logged_at < self.interval:
            return False
        self._last_key, self._logged_at = key, now
        return True


def age(seconds: float | None, none: str = "–") -> str:
    """Seconds as people read them: 12s, 3m05s, 30m, 2h10m, 4d; `none` for an unknown age."""
    if seconds is None:
        return none
    whole = int(seconds)
    if whole < 120:
        return f"{whole}s"
    if whole < 2 * 3600:
        return f"{whole // 60}m{whole % 60:02}s".removesuffix("00s")
    if whole < 48 * 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m".removesuffix("00m")
    return f"{whole // 86400}d"


FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS = 1.0, 30.0


def diagnose(error: Exception, stage: str) -> tuple[str, str]:
    """(what is waited for, why). The former is "the tables", "Postgres", or else the stage that raised."""
    missing = missing_part(error)
    if missing is not None:
        return missing, line_of(error)
    return stage, f"{type(error).__name__}: {line_of(error)}"


def backoff(failures: int) -> float:
    """Seconds to wait after this many failures in a row: 1, 2, 4 … 30."""
    return min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(failures - 1, 10))
