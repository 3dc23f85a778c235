"""Whose fault an error is while turns are written: one record's, or that of Postgres or the disk. Pure."""

from enum import Enum

from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    ProgrammingError,
    SQLAlchemyError,
    StatementError,
)

_LONGEST = 500  # characters of an error's words that are kept

#: Classes of SQLSTATE that speak of the values that were sent.
_OF_VALUES = frozenset({"22", "23", "54"})
#: Those of a server that is away, full, busy, stopping, read-only or broken: they pass, or are mended.
_OF_THE_SERVER = frozenset({"08", "25", "28", "3D", "40", "53", "55", "57", "58", "F0"})


class Fault(Enum):
    """Who has to answer for an error."""

    RECORD = "record"  # this record can never be written as it is
    SERVICE = "service"  # Postgres or the disk: the same record may be written later
    UNCLEAR = "unclear"  # Postgres complains, and either may be the cause


def fault_of(error: Exception) -> Fault:
    """Whatever is not known to be of Postgres or the disk is the record's."""
    if isinstance(error, OSError):
        return Fault.SERVICE
    if isinstance(error, DBAPIError):
        return _of_postgres(error)
    if isinstance(error, StatementError):  # a value could not be bound
        return Fault.RECORD
    return Fault.UNCLEAR if isinstance(error, SQLAlchemyError) else Fault.RECORD


def _of_postgres(error: DBAPIError) -> Fault:
    state = getattr(error.orig, "sqlstate", None)
    if error.connection_invalidated:
        return Fault.SERVICE
    if state is None:  # the driver's own
        of_values = isinstance(error, DataError | IntegrityError | ProgrammingError)
        return Fault.RECORD if of_values else Fault.SERVICE
    if state[:2] in _OF_VALUES:
        return Fault.RECORD
    return Fault.SERVICE if state[:2] in _OF_THE_SERVER else Fault.UNCLEAR


def likeness(error: Exception) -> tuple[str, str | None]:
    """Equal for errors that are alike: their words may differ in the values that they name."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return type(cause).__name__, getattr(cause, "sqlstate", None)


def words_of(error: Exception) -> str:
    """What to tell of an error: of Postgres's its own words, else the kind and the words; no NUL."""
    said = str(error.orig) if isinstance(error, DBAPIError) else f"{type(error).__name__}: {error}"
    return said.replace("\0", "").encode("utf-8", "replace").decode()[:_LONGEST].strip()
