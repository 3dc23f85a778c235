"""What is tracked by git: sources, and nothing that a tool made."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["a-1.0-py3-none-any.whl", "a-1.0.tar.gz", "docs/a.tgz", "a.zip", "a.egg"])
def test_packages_and_archives_are_ignored(name: str) -> None:
    assert git("check-ignore", "--no-index", name) == [name]


def test_no_tracked_file_is_one_that_is_ignored() -> None:
    assert git("ls-files", "--cached", "--ignored", "--exclude-standard") == []


def git(*words: str) -> list[str]:
    ran = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode in (0, 1), ran.stderr
    return ran.stdout.splitlines()
