"""As whom the server runs. PostgreSQL refuses root, so root lends it an unprivileged account.

No system user is made and no folder above Dukou's own is opened. Where such a folder is closed to that
account (/root, a 0700 temporary folder), the server keeps one capability to walk through it:
CAP_DAC_READ_SEARCH, or CAP_DAC_OVERRIDE where root itself has no other (containers, by default).
"""

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dukou.store.embedded.binaries import EmbeddedError

_BORROWED = ("postgres", "nobody")  # initdb insists on an account that the system knows
_PASSED = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True)
class Account:
    uid: int
    gid: int
    borrowed: bool  # it is not the caller's own

    def own(self, path: Path) -> None:
        """Gives a file or folder of Dukou's own to the account."""
        if self.borrowed:
            os.chown(path, self.uid, self.gid)

    def run(self, command: Sequence[object], needs: Iterable[Path]) -> subprocess.CompletedProcess[str]:
        """Runs a command as this account; `needs` are the paths that it must reach.

        Raises:
            EmbeddedError: the account cannot be taken, or a path cannot be reached.
        """
        words = [str(word) for word in command]
        account: dict[str, object] = {}
        if self.borrowed and (closed := self._closed(needs)):
            words = [*self._through(closed), *words]
        elif self.borrowed:
            account = {"user": self.uid, "group": self.gid, "extra_groups": []}
        try:
            return subprocess.run(  # type: ignore[call-overload, no-any-return]
                words,
                cwd="/",  # the caller's may be closed
                env={name: os.environ[name] for name in _PASSED if name in os.environ} | {"LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                umask=0o077,
                **account,
            )
        except PermissionError as error:
            raise EmbeddedError(
                f"this process cannot run PostgreSQL as uid {self.uid} ({error}): "
                "start it as an ordinary user, or set DATABASE_URL"
            ) from error

    def _closed(self, needs: Iterable[Path]) -> Path | None:
        folders = {folder for path in needs for folder in path.resolve().parents}
        return next((folder for folder in sorted(folders) if not self.may_enter(folder.stat())), None)

    def may_enter(self, folder: os.stat_result) -> bool:
        """Whether the mode bits let the account walk through a folder."""
        if folder.st_uid == self.uid:
            return bool(folder.st_mode & 0o100)
        return bool(folder.st_mode & (0o010 if folder.st_gid == self.gid else 0o001))

    def _through(self, closed: Path) -> list[str]:
        setpriv, capability = shutil.which("setpriv"), _capability()
        if setpriv is None or capability is None:
            missing = (
                "install setpriv (util-linux)" if setpriv is None else "give this process CAP_DAC_READ_SEARCH"
            )
            raise EmbeddedError(
                f"{closed} is closed to uid {self.uid}, as whom PostgreSQL would run: {missing}, "
                "or set state_dir to a folder that others may enter, or set DATABASE_URL"
            )
        return [
            *(setpriv, "--reuid", str(self.uid), "--regid", str(self.gid), "--clear-groups"),
            *("--inh-caps", f"+{capability}", "--ambient-caps", f"+{capability}"),
            *("--securebits", "+no_setuid_fixup", "--"),  # else access(2), which initdb asks, forgets it
        ]


def _capability() -> str | None:
    """The narrowest capability of this process that opens folders, as setpriv spells it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    held = next(
        int(line.split()[1], 16) for line in status.read_text().splitlines() if line.startswith("CapPrm")
    )
    return next(
        (name for bit, name in ((2, "dac_read_search"), (1, "dac_override")) if held >> bit & 1), None
    )


def account_for(data: Path) -> Account:
    """The caller's own account; for root the owner of the data, or a borrowed one.

    Raises:
        EmbeddedError: the system has no account to borrow.
    """
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid(), borrowed=False)
    if data.exists() and (owner := data.stat()).st_uid != 0:
        return Account(owner.st_uid, owner.st_gid, borrowed=True)
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    for name in _BORROWED:
        if name in known:
            return Account(known[name].pw_uid, known[name].pw_gid, borrowed=True)
    raise EmbeddedError(
        "PostgreSQL does not run as root, and there is neither a user postgres nor a user nobody: "
        "add one, or set DATABASE_URL"
    )
