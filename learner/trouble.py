"""What a failed round was for want of, in words for the log: pure."""

from sqlalchemy.exc import DBAPIError, ProgrammingError

from store.database import DatabaseError, SchemaError
from store.embedded import EmbeddedError

BACKOFF_FIRST, BACKOFF_MOST = 1.0, 30.0

#: What being without Postgres raises, before and after a connection was there.
NO_POSTGRES = (DatabaseError, EmbeddedError, DBAPIError)


def diagnose(error: Exception, stage: str) -> tuple[str, str]:
    """(what is waited for, why): the tables, Postgres, or the stage that raised."""
    if schema_missing(error):
        return "the tables", first_line(error)
    if isinstance(error, NO_POSTGRES):
        return "Postgres", first_line(error)
    return stage, f"{type(error).__name__}: {first_line(error)}"


def schema_missing(error: Exception) -> bool:
    """Postgres answers, but its tables are missing or older than this code."""
    return isinstance(error, SchemaError | ProgrammingError)


def first_line(error: BaseException) -> str:
    """An error's first line: drivers add hints and statements below it that say nothing to an operator."""
    said = str(error.orig if isinstance(error, DBAPIError) else error).strip().splitlines()
    return said[0].rstrip(".") if said else type(error).__name__


def backoff(failures: int) -> float:
    """Seconds to wait after so many failures in a row: 1, 2, 4 … 30."""
    return min(BACKOFF_MOST, BACKOFF_FIRST * 2.0 ** min(failures - 1, 10))
