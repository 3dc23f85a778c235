"""The private folder of the server's socket: 0700, the server's own, with a path that is short enough."""

import shutil
import stat
import tempfile
from pathlib import Path

from store.embedded.account import Account

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
