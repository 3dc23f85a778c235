"""`dukou migrate`: brings the database to this version's schema, as `alembic upgrade head` does.

The database is the configured one (`database.url`, DATABASE_URL), else the embedded Postgres.
"""

import argparse
import sys

from dukou.errors import reports_errors


@reports_errors
def main() -> int:
    parser = argparse.ArgumentParser(prog="dukou migrate", description=__doc__)
    parser.add_argument("--url", help="another database: postgresql://user:password@host:5432/name")
    asked = parser.parse_args()
    from dukou.settings.load import load_config
    from dukou.store import database

    where = database.normalised(asked.url) if asked.url else database.url(load_config())
    database.upgrade(where)
    print("the schema is up to date", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
