"""What the status sentence is decided from, and what it says."""

from dataclasses import dataclass, field

from dukou.settings.learning import GuardSettings
from dukou.store.funnel import Snapshot


@dataclass(frozen=True)
class StatusSettings:
    """What the sentence needs of config.toml."""

    batch_size: int
    min_size: int
    timeout: float
    idle_seconds: float
    dry_run: bool
    gateway: str
    guard: GuardSettings = field(default_factory=GuardSettings)


@dataclass(frozen=True)
class StatusFacts:
    """`snapshot` None: Postgres did not answer (`trouble` says why), or its tables are missing."""

    settings: StatusSettings
    snapshot: Snapshot | None = None
    trouble: str | None = None
    schema_missing: bool = False


@dataclass(frozen=True)
class Explanation:
    """`kind` is the rule's name; the three parts make the sentence."""

    kind: str
    does: str
    because: str
    change: str

    def sentence(self) -> str:
        return f"The learner {self.does} because {self.because}; {self.change}."
