import json
import subprocess
import sys
from pathlib import Path

import pytest

from learner import cli

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "litellm", "sqlalchemy", "psycopg", "pydantic", "numpy")


@pytest.mark.parametrize("arguments", [["--help"], ["status", "--help"]])
def test_help_loads_nothing_heavy(arguments):
    code = (
        "import contextlib, json, os, sys\n"
        "from learner.cli import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(open(os.devnull, 'w')):\n"
        f"    main({arguments!r})\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not set(HEAVY) & set(json.loads(done.stdout))


def test_status_loads_no_training():
    code = "import json, sys, learner.status.read; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "litellm"} & set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("argv", "verb", "once"),
    [
        ([], "run", False),
        (["--once"], "run", True),
        (["--config", "a.toml"], "run", False),
        (["score", "--once"], "score", True),
        (["train"], "train", False),
    ],
)
def test_no_verb_means_run(argv, verb, once):
    arguments = cli.parser().parse_args(cli._with_verb(argv))
    assert (arguments.verb, arguments.once) == (verb, once)


def test_an_unknown_verb_is_refused(capsys):
    with pytest.raises(SystemExit):
        cli.main(["learn"])
    assert "learn" in capsys.readouterr().err


def test_a_wrong_configuration_is_said_in_words(tmp_path, capsys):
    file = tmp_path / "config.toml"
    file.write_text("[batch]\nrollout_batch_sise = 16\n")
    assert cli.main(["status", "--config", str(file)]) == 2
    assert "rollout_batch_size" in capsys.readouterr().err
