"""Whose fault an error is: a record's, or that of Postgres or the disk."""

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError, InvalidRequestError, StatementError

from gateway.drain.faults import Fault, fault_of, likeness, words_of


def of_postgres(
    state: str | None, kind: type[psycopg.Error] | None = None, *, lost: bool = False
) -> DBAPIError:
    cause = kind("words") if kind is not None else psycopg.errors.lookup(state or "")("words")
    error = DBAPIError.instance("copy", None, cause, psycopg.Error, connection_invalidated=lost)
    assert isinstance(error, DBAPIError)
    return error


@pytest.mark.parametrize(
    "error", [AttributeError("x"), RecursionError("x"), MemoryError(), ValueError("x"), KeyError("x")]
)
def test_what_the_code_raises_is_the_records(error: Exception) -> None:
    assert fault_of(error) is Fault.RECORD


@pytest.mark.parametrize(
    ("state", "fault"),
    [
        ("22P05", Fault.RECORD),  # untranslatable_character
        ("22021", Fault.RECORD),
        ("23514", Fault.RECORD),  # check_violation
        ("54000", Fault.RECORD),  # program_limit_exceeded
        ("53100", Fault.SERVICE),  # disk_full
        ("53200", Fault.SERVICE),  # out_of_memory
        ("57P01", Fault.SERVICE),  # admin_shutdown
        ("40P01", Fault.SERVICE),  # deadlock
        ("25006", Fault.SERVICE),  # read_only_sql_transaction
        ("58030", Fault.SERVICE),  # io_error
        ("55P03", Fault.SERVICE),  # lock_not_available
        ("42P01", Fault.UNCLEAR),  # undefined_table
        ("XX000", Fault.UNCLEAR),  # internal_error
        ("P0001", Fault.UNCLEAR),  # raise_exception
    ],
)
def test_an_error_of_postgres_is_told_by_its_class(state: str, fault: Fault) -> None:
    assert fault_of(of_postgres(state)) is fault


def test_a_lost_connection_is_never_a_records() -> None:
    assert fault_of(of_postgres(None, psycopg.OperationalError)) is Fault.SERVICE
    assert fault_of(of_postgres("23514", lost=True)) is Fault.SERVICE


def test_values_that_the_driver_refuses_are_the_records() -> None:
    assert fault_of(of_postgres(None, psycopg.DataError)) is Fault.RECORD
    assert fault_of(StatementError("no such value", "insert", None, ValueError("x"))) is Fault.RECORD


def test_the_disk_and_the_pool_are_no_records() -> None:
    assert fault_of(OSError(5, "Input/output error")) is Fault.SERVICE
    assert fault_of(InvalidRequestError("x")) is Fault.UNCLEAR


def test_errors_are_alike_whatever_values_they_name() -> None:
    assert likeness(of_postgres("P0001")) == likeness(of_postgres("P0001"))
    assert likeness(of_postgres("P0001")) != likeness(of_postgres("XX000"))


def test_an_errors_words_can_be_stored_and_are_bounded() -> None:
    said = words_of(ValueError("a\0\ud800" + "x" * 10_000))
    assert said.startswith("ValueError: a?")
    assert len(said) == 500
    said.encode()
