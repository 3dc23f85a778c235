"""The errors of Postgres, and each of them as a line for a person: what we wait for and why. Pure."""

from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

from dukou.errors import DatabaseError


class UnusableUrlError(DatabaseError):
    """The database URL does not parse, or is of another database than Postgres."""


class PostgresUnreachableError(DatabaseError):
    """No server answers, or it refuses the connection."""


class SchemaError(DatabaseError):
    """The schema is missing or older than this code."""


class TableLockedError(DatabaseError):
    """A migration could not get a table's lock in time."""


#: What is raised while Postgres cannot be used: by Dukou, and by the driver.
POSTGRES_ERRORS = (DatabaseError, DBAPIError)


def line_of(error: BaseException) -> str:
    """An error's first line, without a full stop at its end; of a driver's error, the driver's own words.

    Drivers add hints, and SQLAlchemy the statement, below it: they tell an operator nothing. An error without
    a message becomes its class's name.
    """
    lines = str(error.orig if isinstance(error, DBAPIError) else error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def unreachable_line(where: URL, error: OperationalError) -> str:
    """The line of a connection that failed, with where to and without the password."""
    return f"Postgres at {place_of(where)} cannot be used: {line_of(error)}"


def place_of(where: URL) -> str:
    """host:port/database."""
    host = where.host or where.query.get("host") or "the default socket"
    return f"{host}{f':{where.port}' if where.port else ''}/{where.database or ''}"


def missing_part(error: BaseException) -> str | None:
    """What there must be before a try can succeed: "the tables" or "Postgres"; None for any other error."""
    if is_schema_missing(error):
        return "the tables"
    return "Postgres" if isinstance(error, POSTGRES_ERRORS) else None


def is_schema_missing(error: BaseException) -> bool:
    """Whether Postgres answers, but its tables are missing or older than this code."""
    return isinstance(error, SchemaError | ProgrammingError)
