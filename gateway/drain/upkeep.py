"""The drainer's care for the tables: partitions are there before their first turn, and go when old."""

import logging
from dataclasses import dataclass
from datetime import UTC, datetime

import psycopg
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from dukou.settings.serving import Storage
from dukou.store import partitions, retention
from dukou.store.postgres_errors import line_of

_log = logging.getLogger(__name__)

UPKEEP_INTERVAL = 3600.0  # seconds
BUSY_RETRY = 60.0  # seconds after a look at which a table was busy


@dataclass(slots=True)
class Upkeep:
    storage: Storage
    _next: float = 0.0

    def look(self, database: Engine, now: float) -> None:
        """Makes and drops partitions where it is time. A busy table is tried again in a minute.

        Raises:
            DBAPIError: Postgres is away.
        """
        if now < self._next:
            return
        moment = datetime.fromtimestamp(now, UTC)
        try:
            with database.begin() as connection:
                periods = partitions.make_ahead(connection, moment, self.storage.partition)
            for period in retention.expired(periods, moment, self.storage.keep_days):
                with database.begin() as connection:
                    dropped = retention.drop(connection, period)
                if not dropped:
                    break  # the next are younger
                _log.info("turns from %s to %s were dropped: storage.keep_days", period.start, period.end)
        except DBAPIError as error:
            if not isinstance(error.orig, psycopg.errors.LockNotAvailable | psycopg.errors.CheckViolation):
                raise
            _log.warning("partitions are left as they are for a minute: %s", line_of(error))
            self._next = now + BUSY_RETRY
        else:
            self._next = now + UPKEEP_INTERVAL
