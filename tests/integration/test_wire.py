"""Arrays that are written byte by byte are what Postgres reads."""

from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, text

from dukou.store import binary

MOMENT = datetime(1999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "array", "values"),
    [
        ("text[]", binary.texts, ["", "é ⛵", None, 'a"b,{}\\']),
        ("bytea[]", binary.blobs, [b"", b"\0\xff", None]),
        ("uuid[]", binary.uuids, [UUID(int=1), None, UUID(int=2**128 - 1)]),
        ("int4[]", binary.integers, [0, -1, None, 2**31 - 1]),
        ("date[]", binary.days, [date(1969, 7, 20), date(2026, 2, 28)]),
        ("timestamptz[]", binary.moments, [MOMENT]),
        ("text[]", binary.texts, []),
    ],
)
def test_an_array_comes_back_as_it_went(db: Engine, kind: str, array: Any, values: list[Any]) -> None:
    with db.connect() as connection:
        found = connection.scalars(text(f"select unnest(cast(:given as {kind}))"), {"given": array(values)})
        assert list(found) == values
