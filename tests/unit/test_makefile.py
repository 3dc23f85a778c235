"""What `make` hands to the commands that it runs: nothing of its own that would change a setting."""

import os
import subprocess
from pathlib import Path

import pytest

from dukou.settings.environment import changes_settings

ROOT = Path(__file__).resolve().parents[2]
BENCHES = sorted(path.stem for path in (ROOT / "bench").glob("[a-z]*.py"))
#: The environment is taken for installed, however old it is.
MAKE = ["make", "--no-print-directory", "-o", ".dukou/venv/.installed"]
# `make test` hands its own flags on.
_WITHOUT_OUTER_MAKE = {name: value for name, value in os.environ.items() if "MAKE" not in name}


def made(*arguments: str, **environ: str) -> list[str]:
    done = subprocess.run(
        [*MAKE, *arguments],
        cwd=ROOT,
        env={**_WITHOUT_OUTER_MAKE, **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", BENCHES)
def test_a_bench_is_run_as_it_is(name):
    assert made("-n", "bench", f"B={name}") == [f".dukou/venv/bin/python -m bench.{name} --json"]


def test_a_recipe_hears_of_settings_what_the_user_says_and_nothing_else():
    def heard(**environ: str) -> dict[str, str]:
        said = (line.partition("=") for line in made("--eval", "heard: ; @env", "heard", **environ))
        return {name: value for name, _, value in said if changes_settings(name)}

    assert heard() == {}
    assert heard(DUKOU_STATE_DIR=".dukou/demo") == {"DUKOU_STATE_DIR": ".dukou/demo"}
