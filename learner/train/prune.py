"""What stays on disk: the newest few, the live version, and the one that training goes on from."""

from collections.abc import Collection, Iterable
from pathlib import Path

from learner.train import folder


def expendable(present: Iterable[int], newest: int, protected: Collection[int]) -> list[int]:
    """The numbers that may go: all but the `newest` highest and the protected ones."""
    kept = set(sorted(present)[-newest:]) | set(protected)
    return sorted(set(present) - kept)


def prune(parent: Path, newest: int, protected: Collection[int]) -> list[int]:
    """Deletes what is expendable among the complete numbered folders of `parent`; returns their numbers."""
    present = folder.numbered(parent)
    gone = expendable(present, newest, protected)
    for number in gone:
        folder.remove(present[number])
    return gone
