"""Turns the error that ended a round into (what we wait for, why) and a pause. Pure."""

from store.postgres_errors import line_of, missing_part

BACKOFF_FIRST, BACKOFF_MOST = 1.0, 30.0


def diagnose(error: Exception, stage: str) -> tuple[str, str]:
    """(what is waited for, why): the tables, Postgres, or the stage that raised."""
    missing = missing_part(error)
    if missing is not None:
        return missing, line_of(error)
    return stage, f"{type(error).__name__}: {line_of(error)}"


def backoff(failures: int) -> float:
    """Seconds to wait after so many failures in a row: 1, 2, 4 … 30."""
    return min(BACKOFF_MOST, BACKOFF_FIRST * 2.0 ** min(failures - 1, 10))
