"""Arrays go to Postgres and come back as they were."""

import numpy as np
import pytest
from psycopg.errors import DataError
from sqlalchemy import Column, Engine, Integer, MetaData, Table, insert, select, text

from dukou.store.binary import Float4Array, Int4Array

metadata = MetaData()
things = Table(
    "things",
    metadata,
    Column("n", Integer, primary_key=True),
    Column("ids", Int4Array),
    Column("logprobs", Float4Array),
)


@pytest.fixture
def created(db: Engine) -> Engine:
    metadata.create_all(db)
    return db


def stored(engine: Engine, **row: object) -> tuple[object, object]:
    with engine.begin() as connection:
        connection.execute(insert(things), {"n": 1, **row})
        return tuple(connection.execute(select(things.c.ids, things.c.logprobs)).one())


def test_numpy_arrays_come_back_bit_by_bit(created: Engine) -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(-(2**31), 2**31, 4000, dtype=np.int64)
    bits = rng.integers(0, 2**32, 4000, dtype=np.uint32).view(np.float32)
    logprobs = bits[np.isfinite(bits)]
    got_ids, got_logprobs = stored(created, ids=ids, logprobs=logprobs)
    assert got_ids.dtype == np.int32
    assert np.array_equal(got_ids, ids)
    assert got_logprobs.dtype == np.float32
    assert np.array_equal(got_logprobs.view(np.uint32), logprobs.view(np.uint32))


def test_lists_and_empty_arrays_come_back(created: Engine) -> None:
    ids, logprobs = stored(created, ids=[], logprobs=[])
    assert (ids.dtype, ids.size, logprobs.dtype, logprobs.size) == (np.int32, 0, np.float32, 0)


@pytest.mark.parametrize(
    "given",
    [
        [-0.5, None, -1.5],
        np.array([-0.5, np.nan, -1.5]),
        np.ma.masked_array([-0.5, 7.0, -1.5], mask=[False, True, False]),
    ],
    ids=["list", "nan", "masked"],
)
def test_a_missing_position_is_null_in_postgres_and_nan_here(created: Engine, given: object) -> None:
    _, logprobs = stored(created, logprobs=given)
    assert np.array_equal(logprobs, np.float32([-0.5, np.nan, -1.5]), equal_nan=True)
    with created.connect() as connection:
        nulls = connection.scalar(text("select array_positions(logprobs, null)::text from things"))
    assert nulls == "{2}"


def test_none_is_null(created: Engine) -> None:
    assert stored(created, ids=None, logprobs=None) == (None, None)


def test_infinities_are_values(created: Engine) -> None:
    _, logprobs = stored(created, logprobs=[-np.inf, np.inf])
    assert logprobs.tolist() == [-np.inf, np.inf]


def test_many_rows_go_in_at_once_with_and_without_returning(created: Engine) -> None:
    rows = [{"n": n, "ids": np.arange(n), "logprobs": None if n % 2 else [0.0] * n} for n in range(1, 50)]
    with created.begin() as connection:
        connection.execute(insert(things), rows[:25])
        numbers = connection.scalars(insert(things).returning(things.c.n), rows[25:]).all()
        lengths = connection.execute(
            text("select n, cardinality(ids), cardinality(logprobs) from things order by n")
        )
        assert sorted(numbers) == list(range(26, 50))
        assert [tuple(row) for row in lengths] == [(n, n, None if n % 2 else n) for n in range(1, 50)]


def test_the_server_reads_the_elements_as_numbers(created: Engine) -> None:
    stored(created, ids=[1, 2, 2**31 - 1], logprobs=[-0.5, -0.25])
    with created.connect() as connection:
        row = connection.execute(text("select ids[3], logprobs[2], array_ndims(ids) from things")).one()
    assert tuple(row) == (2**31 - 1, -0.25, 1)


def test_a_null_among_ids_is_an_error_when_read(created: Engine) -> None:
    with created.begin() as connection:
        connection.execute(text("insert into things (n, ids) values (1, array[1, null])"))
        with pytest.raises((ValueError, DataError), match="ids are never missing"):
            connection.execute(select(things.c.ids)).all()
