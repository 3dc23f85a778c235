"""Where everything lies in the state folder. Names only: nothing here makes a folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dukou.settings.model import Config


@dataclass(frozen=True, slots=True)
class StatePaths:
    """The folders under `state_dir`; whoever writes into one makes it first."""

    root: Path

    @classmethod
    def for_config(cls, config: Config) -> Self:
        return cls(config.state_dir)

    @property
    def venv(self) -> Path:
        """Dukou's own Python environment."""
        return self.root / "venv"

    @property
    def engine_env(self) -> Path:
        """SGLang's Python environment, apart from Dukou's: their pins disagree."""
        return self.root / "engine"

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def postgres(self) -> Path:
        """The embedded server's data and socket."""
        return self.root / "postgres"

    @property
    def spool(self) -> Path:
        return self.root / "spool"

    @property
    def run(self) -> Path:
        """What lasts as long as the processes: the routes file, pids."""
        return self.root / "run"

    @property
    def routes_file(self) -> Path:
        """Written by the reconciler, read by the workers."""
        return self.run / "routes.json"

    @property
    def suspects(self) -> Path:
        """Which requests were in flight when engines died, written and read by all workers."""
        return self.run / "suspects"

    @property
    def metrics(self) -> Path:
        """What each of the gateway's processes counts, a file a process."""
        return self.run / "metrics"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def bench(self) -> Path:
        """One folder a peer system."""
        return self.root / "bench"

    def checkpoints(self, policy: str) -> Path:
        """Resumable states of one policy, a folder a step."""
        return self.root / "checkpoints" / _folder_name(policy)

    def versions(self, policy: str) -> Path:
        """What engines load, a folder a policy version."""
        return self.root / "versions" / _folder_name(policy)


def _folder_name(policy: str) -> str:
    """Raises ValueError where a policy's name would lead out of its folder."""
    if not policy or policy.startswith(".") or "/" in policy or "\\" in policy or "\0" in policy:
        raise ValueError(f"the policy name {policy!r} cannot be a folder's name")
    return policy
