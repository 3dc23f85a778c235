"""Starting, finding and stopping the embedded server. Any number of processes may call at once.

The embedded server's configuration files, written anew at every start.

The private folder of the server's socket: 0700, the server's own, with a path that is short enough.
"""

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql
from sqlalchemy import URL

from dukou.store.embedded import binaries
from dukou.store.embedded.account import Account, account_for
from dukou.store.embedded.binaries import EmbeddedError

HBA = "local all all trust\n"  # the socket's folder is the lock: only the server's user and root can enter it


def postgresql_conf(socket_folder: Path, local: Path) -> str:
    """postgresql.conf for one machine; `local` (an operator's own file) wins over it.

    Neither path holds a comma or a double quote (`socket_folder`, `server`), which would part a list.
    """
    return f"""# Written by Dukou at every start. Your own settings go into {local.name}, beside this folder.
listen_addresses = ''
unix_socket_directories = {_quoted(socket_folder)}
unix_socket_permissions = 0700
port = 5432
max_connections = 50
shared_buffers = '64MB'
max_wal_size = '512MB'
max_parallel_workers_per_gather = 0
fsync = on
password_encryption = 'scram-sha-256'
timezone = 'UTC'
log_timezone = 'UTC'
lc_messages = 'C'
# Statements hold what users said: none of them goes into the log.
log_statement = 'none'
log_min_error_statement = 'panic'
log_min_messages = 'warning'
# A transaction that its client forgot holds back vacuum.
idle_in_transaction_session_timeout = '5min'
include = {_quoted(local)}
"""


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("\\", "\\\\").replace("'", "''") + "'"


_SOCKET = ".s.PGSQL.5432"
_LONGEST = 103  # bytes of a unix socket's path on macOS; Linux allows 107


def recorded(home: Path) -> Path | None:
    """Where the socket of `<state>/postgres` lies; None before the first start."""
    note = home / "socket_folder"
    return Path(note.read_text()) if note.exists() else None


def prepare(home: Path, account: Account) -> Path:
    """The recorded folder if it still is private, else a new one, which is recorded."""
    folder = recorded(home)
    if folder is None or not _is_private(folder, account):
        folder = _create(home, account)
        note = home / "socket_folder.new"
        note.write_text(str(folder))
        note.replace(home / "socket_folder")
    return folder


def has_socket(home: Path) -> bool:
    """Whether the server's socket is where it was recorded."""
    folder = recorded(home)
    return folder is not None and (folder / _SOCKET).exists()


def sweep(home: Path) -> None:
    """Removes a folder that lies among the temporary ones; the next start makes another."""
    folder = recorded(home)
    if folder is not None and not folder.is_relative_to(home):
        shutil.rmtree(folder, ignore_errors=True)


def _create(home: Path, account: Account) -> Path:
    folder = home / "socket"
    too_long = len(bytes(folder / _SOCKET)) > _LONGEST
    if too_long or "," in str(folder):  # a comma parts the hosts of a connection string
        folder = Path(tempfile.mkdtemp(prefix="dukou-"))
    else:
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)
    account.own(folder)
    return folder


def _is_private(folder: Path, account: Account) -> bool:
    try:
        found = folder.lstat()
    except FileNotFoundError:  # temporary folders are swept
        return False
    return (
        stat.S_ISDIR(found.st_mode) and found.st_uid == account.uid and stat.S_IMODE(found.st_mode) == 0o700
    )


_NAME = "dukou"  # of the role and of the database
_READY_SECONDS = (
    120  # crash recovery replays at most max_wal_size; orphans of a killed server end by themselves
)
_PAUSE = 0.2
_SHELL_CHARACTERS = '"$`\\'  # pg_ctl hands paths to a shell, in double quotes


def ensure_running(state: Path) -> str:
    """The SQLAlchemy URL of the state folder's own Postgres, which is made and started where needed.

    Raises:
        EmbeddedError: it cannot run here; the message says what would help.
    """
    home = _home(state)
    if not _answers(home):
        home.mkdir(parents=True, exist_ok=True)
        with _lock(home):
            if not _answers(home):
                _start(home)
            _create_database(home)
    return _url(home)


def is_running(state: Path) -> bool:
    """Whether the state folder's own Postgres takes connections."""
    return _answers(_home(state))


def stop(state: Path) -> None:
    """Ends the server after what it is doing; does nothing where none runs.

    Raises:
        EmbeddedError: it would not end.
    """
    home = _home(state)
    if not (home / "data" / "postmaster.pid").exists():
        return
    with _lock(home):
        _remove_stale_pid_file(home / "data")
        if (home / "data" / "postmaster.pid").exists():
            _stop(home / "data")
        sweep(home)


def _stop(data: Path) -> None:
    folder = binaries.find(data)
    command = [folder / "pg_ctl", "stop", "-D", data, "-m", "fast", "-w", "-t", str(_READY_SECONDS)]
    ended = account_for(data).run(command, needs=(data, folder / "pg_ctl"))
    if ended.returncode and _is_alive(data):
        raise EmbeddedError(f"PostgreSQL in {data} did not stop: {ended.stdout.strip()}")


def _home(state: Path) -> Path:
    return state.resolve() / "postgres"


@contextmanager
def _lock(home: Path) -> Iterator[None]:
    with (home / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _url(home: Path) -> str:
    folder = recorded(home)
    return URL.create(
        "postgresql+psycopg", _NAME, database=_NAME, query={"host": str(folder)}
    ).render_as_string()


def _connect(home: Path, database: str) -> psycopg.Connection:
    folder = recorded(home)
    return psycopg.connect(host=str(folder), user=_NAME, dbname=database, autocommit=True, connect_timeout=10)


def _answers(home: Path, database: str = _NAME) -> bool:
    if recorded(home) is None:
        return False
    try:
        _connect(home, database).close()
    except psycopg.OperationalError:
        return False
    return True


def _create_database(home: Path) -> None:
    with _connect(home, "postgres") as connection:
        exists = connection.execute("select 1 from pg_database where datname = %s", [_NAME]).fetchone()
        if not exists:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(_NAME)))


def _start(home: Path) -> None:
    data = home / "data"
    account = account_for(data)
    folder = binaries.find(data)
    for path in (home, folder):
        if set(str(path)) & set(_SHELL_CHARACTERS):
            raise EmbeddedError(f"pg_ctl cannot handle a path with one of {_SHELL_CHARACTERS}: {path}")
    if not data.exists():
        _initialise(home, folder, account)
    if _runs(data) and not has_socket(home):
        _stop(data)  # temporary folders are swept: nobody can reach this server any more
    sockets = prepare(home, account)
    local = home / "local.conf"
    if not local.exists():
        local.write_text("# What is set here wins over Dukou's own data/postgresql.conf.\n")
    _write(data / "postgresql.conf", postgresql_conf(sockets, local), account)
    _write(data / "pg_hba.conf", HBA, account)
    log = home / "server.log"
    log.touch(mode=0o600)
    account.own(log)
    command = [folder / "pg_ctl", "start", "-D", data, "-l", log, "-w", "-t", str(_READY_SECONDS)]
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        _remove_stale_pid_file(data)
        began = log.stat().st_size
        started = account.run(command, needs=(data, log, sockets, folder / "postgres"))
        if started.returncode == 0 or _answers(home, "postgres"):
            return
        said = _since(log, began)
        if not _is_transient(said) or time.monotonic() > deadline:
            raise EmbeddedError(f"PostgreSQL did not start; {log} says:\n{(said or started.stdout).strip()}")
        time.sleep(_PAUSE)


def _initialise(home: Path, folder: Path, account: Account) -> None:
    """Made aside and renamed: an interrupted initdb leaves nothing that looks like a cluster."""
    new = home / "data.new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o700)
    account.own(new)
    builtin = binaries.major_version(folder) >= 17  # needs no locale of the system's
    locale = (
        ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
        if builtin
        else ["--locale=C.UTF-8"]
    )
    command = [
        folder / "initdb",
        "-D",
        new,
        "-U",
        _NAME,
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--no-instructions",
        *locale,
    ]
    made = account.run(command, needs=(new, folder / "initdb"))
    if made.returncode:
        raise EmbeddedError(f"initdb failed in {home}:\n{made.stdout.strip()}")
    new.rename(home / "data")


def _write(path: Path, content: str, account: Account) -> None:
    path.write_text(content)
    account.own(path)


def _since(log: Path, offset: int) -> str:
    with log.open("rb") as file:
        file.seek(offset)
        return file.read().decode(errors="replace")


def _is_transient(said: str) -> bool:
    """Whether a failed start may succeed by waiting: what a killed server left is still going away."""
    return any(
        sign in said
        for sign in (
            "shared memory block",
            "lock file",
            "is another postmaster",
            "the database system is starting up",
        )
    )


def _remove_stale_pid_file(data: Path) -> None:
    """Removes a pid file whose process is another program by now: after a reboot pids come again."""
    works_in = _working_folder(data)
    if works_in is not None and works_in != data:
        (data / "postmaster.pid").unlink(missing_ok=True)


def _is_alive(data: Path) -> bool:
    """Whether the process of the pid file is there. A killed server leaves its file, which stays for the next
    one: PostgreSQL sees by it whether processes of the old one are still at the data."""
    try:
        os.kill(int((data / "postmaster.pid").read_text().split("\n", 1)[0]), 0)
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True
    return True


def _runs(data: Path) -> bool:
    return _working_folder(data) == data


def _working_folder(data: Path) -> Path | None:
    """Where the process of the pid file works; a server works in its data folder. None: no file, no such
    process, not ours to look at, or a system without /proc, where PostgreSQL decides by itself."""
    try:
        pid = int((data / "postmaster.pid").read_text().split("\n", 1)[0])
        return Path(os.readlink(f"/proc/{pid}/cwd"))
    except (FileNotFoundError, ProcessLookupError, PermissionError, ValueError):
        return None
