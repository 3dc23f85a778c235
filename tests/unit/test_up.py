"""`make up`, as far as it goes without starting anything."""

from pathlib import Path

import pytest

from dukou.local import up


class Unstartable:
    def __init__(self, *_: object) -> None:
        self.was_stopped = False

    def start(self) -> None:
        raise KeyboardInterrupt

    def stop(self) -> None:
        self.was_stopped = True


def test_it_says_first_what_the_environment_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUKOU_STATE_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(up, "Stack", Unstartable)
    monkeypatch.setattr(up.signal, "signal", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        up.main()
    assert capsys.readouterr().err.splitlines()[0] == "the environment sets: state_dir (DUKOU_STATE_DIR)"
    assert not (tmp_path / "elsewhere" / "run" / "up.pid").exists()
