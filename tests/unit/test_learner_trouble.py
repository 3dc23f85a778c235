import pytest
from sqlalchemy.exc import OperationalError, ProgrammingError

from dukou.store.embedded import EmbeddedError
from dukou.store.postgres_errors import PostgresUnreachableError, SchemaError
from learner.log import backoff, diagnose


@pytest.mark.parametrize(
    ("error", "what", "because"),
    [
        (PostgresUnreachableError("no server."), "Postgres", "no server"),
        (EmbeddedError("no binaries"), "Postgres", "no binaries"),
        (OperationalError("select 1", {}, Exception("gone\nhint")), "Postgres", "gone"),
        (SchemaError("old"), "the tables", "old"),
        (ProgrammingError("select 1", {}, Exception("relation missing")), "the tables", "relation missing"),
        (ValueError("bad"), "training", "ValueError: bad"),
        (ValueError(), "training", "ValueError: ValueError"),
    ],
)
def test_a_fault_is_named_by_what_is_missing(error, what, because):
    assert diagnose(error, "training") == (what, because)


def test_pauses_double_up_to_a_bound():
    assert [backoff(n) for n in (1, 2, 3, 6, 1000)] == [1, 2, 4, 30, 30]
