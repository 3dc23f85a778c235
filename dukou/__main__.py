"""`python -m dukou`, installed as `dukou`: the commands of one machine.

    dukou migrate           brings the database to this version's schema
    dukou up | down         starts everything and stays; stops what `up` started
    dukou demo              shows the whole loop on this machine
    dukou engine VERB       installs, starts or checks SGLang
    dukou psql [ARGS]       opens an SQL shell on the database
    dukou forget TENANT     removes the text of a tenant
    dukou reset             removes all recorded data, after asking

`COMMAND --help` says more. Gateway and learner are `python -m gateway` and `python -m learner`.
"""

import importlib
import sys
from collections.abc import Sequence

#: Command → the module whose `main` runs it. A module is imported when its command is asked for.
COMMANDS = {
    "migrate": "dukou.store.migrate",
    "up": "dukou.local.up",
    "down": "dukou.local.down",
    "demo": "dukou.local.demo.__main__",
    "engine": "dukou.local.engine.__main__",
    "psql": "dukou.local.psql",
    "forget": "dukou.store.forget",
    "reset": "dukou.local.reset",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status, 2 where there is no such command."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] not in COMMANDS:
        asked_for_help = given[:1] in ([], ["-h"], ["--help"])
        print(__doc__, file=sys.stdout if asked_for_help else sys.stderr)
        return 0 if asked_for_help else 2
    command, *rest = given
    sys.argv = [f"dukou {command}", *rest]  # what the module's own parser reads
    return int(importlib.import_module(COMMANDS[command]).main())


if __name__ == "__main__":
    sys.exit(main())
