"""`make psql`: an SQL shell on this state folder's database; arguments go to psql."""

import os
import shutil
import sys

from sqlalchemy.engine import make_url

from dukou.errors import reports_errors
from dukou.settings.load import load_config
from dukou.settings.paths import StatePaths
from dukou.store import database
from dukou.store.embedded import binaries


def libpq(url: str) -> dict[str, str]:
    """libpq's environment variables for a SQLAlchemy URL: a password shows in no process list."""
    parts = make_url(url)
    host = parts.host or parts.query.get("host")
    found = {
        "PGHOST": host,
        "PGPORT": parts.port,
        "PGUSER": parts.username,
        "PGPASSWORD": parts.password,
        "PGDATABASE": parts.database,
    }
    return {name: str(value) for name, value in found.items() if value}


@reports_errors
def main() -> int:
    config = load_config()
    program = shutil.which("psql")
    if program is None:
        program = str(binaries.find(StatePaths.for_config(config).postgres / "data") / "psql")
    os.execve(program, [program, *sys.argv[1:]], {**os.environ, **libpq(database.url(config))})


if __name__ == "__main__":
    raise SystemExit(main())
