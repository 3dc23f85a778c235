"""A process that dies at a chosen point: before or after a commit or a change to the disk. Once dead it does
nothing any more: neither its `finally` blocks nor its `except` blocks change a file or a table."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from sqlalchemy import Engine

from learner.train import export, files

#: (where it is looked up, its name): everything by which a learner changes the disk.
CHANGES: tuple[tuple[Any, str], ...] = (
    (os, "fsync"),
    (os, "replace"),
    (Path, "mkdir"),
    (Path, "rename"),
    (Path, "touch"),
    (Path, "unlink"),
    (Path, "write_text"),
    (shutil, "rmtree"),
    (shutil, "copy"),
    (torch, "save"),
    (safetensors.torch, "save_file"),
    (files, "save_file"),
    (export, "save_file"),
)


class Killed(BaseException):
    """As a signal: no `except Exception` may swallow it."""


class Mortal:
    """Counts the points that a life passes; dies at the one whose number it is given."""

    def __init__(self, dies_at: int | None) -> None:
        self.dies_at, self.points, self.where = dies_at, 0, ""

    def passes(self, where: str) -> None:
        if self.dies_at is not None and self.points >= self.dies_at:
            self.where = self.where or where
            raise Killed(self.where)
        self.points += 1

    def watch(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            self.passes(f"before {name}")
            result = real(*args, **kwargs)
            self.passes(f"after {name}")
            return result

        return watched

    def lives(self, patch: pytest.MonkeyPatch, engine: Engine) -> None:
        """From now until the patch ends, every change is a point."""
        for place, name in CHANGES:
            if hasattr(place, name):
                patch.setattr(place, name, self.watch(getattr(place, name), name))
        patch.setattr(engine.dialect, "do_commit", self.watch(engine.dialect.do_commit, "commit"))
