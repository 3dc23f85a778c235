"""Turns the error that ended a round into (what is waited for, why), and says how long to pause. Pure."""

from dukou.store.postgres_errors import line_of, missing_part

FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS = 1.0, 30.0


def diagnose(error: Exception, stage: str) -> tuple[str, str]:
    """(what is waited for, why). The former is "the tables", "Postgres", or else the stage that raised."""
    missing = missing_part(error)
    if missing is not None:
        return missing, line_of(error)
    return stage, f"{type(error).__name__}: {line_of(error)}"


def backoff(failures: int) -> float:
    """Seconds to wait after this many failures in a row: 1, 2, 4 … 30."""
    return min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(failures - 1, 10))
