"""When to speak, and in which words: pure. The log of the learner is made of these lines."""

from dataclasses import dataclass, field

RESUMED = "submission resumed"


@dataclass(frozen=True)
class Waiting:
    """Samples that are there, of those needed; `kind` names the reason, `because` words it."""

    needed: int
    current: int
    oldest: float | None
    kind: str
    because: str

    def line(self) -> str:
        return (
            f"waiting for samples batch_size={self.needed} current={self.current} "
            f"oldest={age(self.oldest, none='none')} because {self.because}"
        )


@dataclass
class Say:
    """Decides whether a line is due: at once when its key is new, else every `interval` seconds."""

    interval: float
    _key: object = None
    _said_at: float = field(default=float("-inf"))
    _resumed: bool = False

    def resumed(self) -> str | None:
        """The line that samples are taken from now on; once in a process's life."""
        if self._resumed:
            return None
        self._resumed = True
        return RESUMED

    def waiting(self, waiting: Waiting, now: float) -> str | None:
        """The line for want of samples; `now` in seconds of any clock that only grows."""
        return waiting.line() if self._due((waiting.current, waiting.kind), now) else None

    def waiting_for(self, what: str, because: str, now: float) -> str | None:
        """The line for anything else than samples: a dependency, a stage that failed."""
        return f"waiting for {what} because {because}" if self._due((what, because), now) else None

    def went_on(self) -> None:
        """Something was done: the next wait is a new one and is said at once."""
        self._key = None

    def _due(self, key: object, now: float) -> bool:
        if key == self._key and now - self._said_at < self.interval:
            return False
        self._key, self._said_at = key, now
        return True


def age(seconds: float | None, none: str = "–") -> str:
    """Seconds as people read them: 12s, 3m05s, 30m, 2h10m, 4d; `none` where the age is not known."""
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
