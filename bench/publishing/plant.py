"""A version to publish in a bench: a folder, and what is known of it. Nothing heavy is imported."""

from dataclasses import dataclass
from pathlib import Path

from dukou.store.versions import Probe
from learner.train import files

RANK = 8
MODULES = ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj")  # no q without v: engines fuse them


@dataclass(frozen=True, slots=True)
class Plant:
    """A folder to publish under any number, and its probe."""

    path: Path
    probe: Probe

    def copy_to(self, final: Path) -> None:
        """Hard links: a checkpoint appears as quickly as its marker."""
        with files.whole(final) as beside:
            for file in self.path.iterdir():
                (beside / file.name).hardlink_to(file)
