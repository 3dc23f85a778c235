"""Folders that are there as a whole or not at all: written beside, synced, marked, renamed."""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

#: The last file written. A folder without it was left by a crash and counts as absent.
MARKER = "COMPLETE"


@contextmanager
def whole(final: Path) -> Iterator[Path]:
    """Yields an empty folder to write into; when the block ends well, it is `final`, durably.

    What was at `final` before is replaced. When the block raises, nothing has changed.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    for left in final.parent.glob(f".{final.name}.*.partial"):
        shutil.rmtree(left)
    beside = final.with_name(f".{final.name}.{os.getpid()}.partial")
    beside.mkdir()
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, beside, ignore_errors=True)
        yield beside
        (beside / MARKER).touch()
        for path in [*beside.rglob("*"), beside]:
            _sync(path)
        undo.pop_all()
    if final.exists():
        shutil.rmtree(final)
    beside.rename(final)
    _sync(final.parent)


def is_complete(folder: Path) -> bool:
    return (folder / MARKER).is_file()


def numbered(parent: Path) -> dict[int, Path]:
    """The complete folders in `parent` that have a number for a name, by number, ascending."""
    if not parent.is_dir():
        return {}
    found = [
        (int(path.name), path) for path in parent.iterdir() if path.name.isdecimal() and is_complete(path)
    ]
    return dict(sorted(found))


def remove(folder: Path) -> None:
    """Deletes a folder; the marker goes first, so that a crash leaves no half of it that looks whole."""
    (folder / MARKER).unlink(missing_ok=True)
    shutil.rmtree(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
