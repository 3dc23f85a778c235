"""`make reset`: forget recorded turns, checkpoints and versions, after asking. Installed software stays."""

import shutil
import sys

from dukou.errors import reports_errors
from dukou.settings.load import load_config
from dukou.settings.paths import StatePaths
from dukou.store import embedded


@reports_errors
def main() -> int:
    config = load_config()
    paths = StatePaths.for_config(config)
    if (paths.run / "up.pid").exists():
        print("Dukou is running: `make down` first", file=sys.stderr)
        return 1
    data = [
        p
        for p in (paths.postgres, paths.spool, paths.root / "checkpoints", paths.root / "versions", paths.run)
        if p.exists()
    ]
    print(
        "This deletes every recorded turn, score, checkpoint and version under " + str(paths.root),
        file=sys.stderr,
    )
    if config.database.url.get_secret_value():
        print(
            "The database at DATABASE_URL is left alone: `alembic downgrade base` empties it", file=sys.stderr
        )
    if input("Type 'forget' to go on: ") != "forget":
        print("nothing was deleted", file=sys.stderr)
        return 1
    if embedded.is_running(paths.root):
        embedded.stop(paths.root)
    for folder in data:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
