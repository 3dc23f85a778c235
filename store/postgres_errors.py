"""What an error of Postgres means, in a line for a person: what we wait for and why. Pure."""

from sqlalchemy.exc import DBAPIError, ProgrammingError

from store.database import SchemaError
from store.errors import DatabaseError

#: What is raised while Postgres cannot be used: by Dukou, and by the driver.
POSTGRES_ERRORS = (DatabaseError, DBAPIError)


def line_of(error: BaseException) -> str:
    """An error's first line, without a full stop at its end; of a driver's error, the driver's own words.

    Drivers add hints, and SQLAlchemy the statement, below it: they tell an operator nothing. An error without
    a message becomes its class's name.
    """
    lines = str(error.orig if isinstance(error, DBAPIError) else error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def missing_part(error: BaseException) -> str | None:
    """What there must be before a try can succeed: "the tables" or "Postgres"; None for any other error."""
    if is_schema_missing(error):
        return "the tables"
    return "Postgres" if isinstance(error, POSTGRES_ERRORS) else None


def is_schema_missing(error: BaseException) -> bool:
    """Whether Postgres answers, but its tables are missing or older than this code."""
    return isinstance(error, SchemaError | ProgrammingError)
