"""COPY writes what an INSERT would, for every type that Dukou's wide tables have."""

from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from sqlalchemy import Engine, insert, select
from sqlalchemy.exc import DataError, IntegrityError

from dukou.store.binary import copy_rows
from dukou.store.tables import sessions, turn_states, turns

ROW: dict[str, Any] = {
    "id": UUID(int=0x0197_0000_0000_7000_8000_0000_0000_0001),
    "request_id": UUID(int=1),
    "tenant": "tenant é ⛵",
    "session_id": "tab\tand \\ and\nline",
    "segment_id": UUID(int=1),
    "parent_id": None,
    "ordinal": 2_147_483_647,
    "kind": "main",
    "session_source": "new",
    "endpoint": "",
    "stream": True,
    "status": "ok",
    "period": date(1969, 7, 20),
    "rest_hash": b"\x00\xff\n",
    "sampling": {"z": 1.5, "a": [None, "é"]},
    "prompt_ids": np.array([1, -5, 2**31 - 1], np.int32),
    "prompt_tokens": 3,
    "response_ids": np.array([], np.int32),
    "response_logprobs": np.array([], np.float32),
    "capture": "sampled",
    "temperature": 0.1,
    "trainable": False,
    "untrainable_reason": "side",
    "started_at": datetime(1999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    "finished_at": datetime(2026, 2, 28, 1, 2, 3, 4, tzinfo=UTC),
}


def test_a_row_reads_back_as_an_inserted_one(db: Engine) -> None:
    twin = {**ROW, "id": UUID(int=ROW["id"].int + 1)}
    with db.begin() as connection:
        copy_rows(connection, turns, [ROW])
        connection.execute(insert(turns).values(**twin))
        copied, inserted = connection.execute(select(turns).order_by(turns.c.id)).mappings()
    differing = [
        name
        for name in copied
        if name not in ("id", "recorded_at") and repr(copied[name]) != repr(inserted[name])
    ]
    assert differing == []
    assert copied["prompt_ids"].tolist() == [1, -5, 2**31 - 1]
    assert copied["started_at"] == ROW["started_at"]
    assert list(copied["sampling"]) == ["z", "a"]


def test_a_row_that_is_there_already_is_an_integrity_error_and_the_connection_goes_on(db: Engine) -> None:
    row = {"tenant": "t", "id": "s", "source": "new", "last_turn_at": ROW["started_at"]}
    with db.connect() as connection:
        copy_rows(connection, sessions, [row])
        connection.commit()
        with pytest.raises(IntegrityError):
            copy_rows(connection, sessions, [row])
        connection.rollback()
        assert connection.execute(select(sessions.c.id)).all() == [("s",)]


def test_a_value_that_postgres_cannot_hold_is_a_data_error(db: Engine) -> None:
    row = {"tenant": "t", "id": "a\0b", "source": "new", "last_turn_at": ROW["started_at"]}
    with db.connect() as connection, pytest.raises(DataError):
        copy_rows(connection, sessions, [row])


def test_no_rows_are_no_statement(db: Engine) -> None:
    with db.begin() as connection:
        copy_rows(connection, turn_states, [])
        assert connection.execute(select(turn_states)).all() == []
