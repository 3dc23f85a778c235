"""Commands by the names that they had before, which work for one more release."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("module", ["local.engine", "store.forget", "local.demo"])
def test_a_command_answers_to_its_old_name(module):
    help_ = subprocess.run(
        [sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "usage:" in help_.stdout


def test_a_command_of_dukou_that_is_not_there_is_told_with_those_that_are():
    done = subprocess.run(
        [sys.executable, "-m", "dukou", "migrat"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "dukou migrate" in done.stderr
