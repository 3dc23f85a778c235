"""The command line, and how a dead child comes back."""

import sys
from pathlib import Path

import pytest

from dukou.settings.model import Config
from dukou.settings.serving import Gateway
from gateway.cli import exposed, main
from gateway.supervise import Child, backoff


def test_help_imports_nothing_heavy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heavy = ("dukou.settings", "dukou.store", "pydantic", "fastapi")
    for name in [n for n in sys.modules if n.startswith(heavy)]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "reconcile" in capsys.readouterr().out
    assert not {"dukou.settings.load", "pydantic", "fastapi"} & sys.modules.keys()


def test_an_open_host_without_keys_is_refused_with_the_command_that_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DUKOU_KEYS", raising=False)
    assert main(["serve", "--host", "0.0.0.0", "--port", "0"]) == 2
    assert "DUKOU_KEYS=$(openssl rand -hex 16) python -m gateway --host 0.0.0.0" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_loopback_needs_no_keys(host: str) -> None:
    assert exposed(Config(gateway=Gateway(host=host, keys=[]))) is None


def test_a_child_that_dies_again_and_again_waits_longer() -> None:
    delays, delay = [], 0.0
    for _ in range(9):
        delay = backoff(1.0, delay)
        delays.append(delay)
    assert delays[:3] == [0.5, 1.0, 2.0]
    assert delays[-1] == 30.0
    assert backoff(61.0, 30.0) == 0.0


def test_a_death_is_noticed_and_the_next_start_planned() -> None:
    child = Child("x", ["--help"])
    child.start(0.0, lambda: None)
    assert child.process is not None
    child.process.wait()
    child.check(1.0)
    assert child.process is None
    assert child.start_at == 1.5
