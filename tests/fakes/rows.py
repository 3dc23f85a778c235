"""Rows of `turns` as the drainer lays them out, from columns as people know them."""

import json
from datetime import UTC, datetime
from typing import Any

import numpy as np
from sqlalchemy import Connection, insert

from dukou.store import contents, layout, partitions
from dukou.store.tables import turns
from dukou.store.turn_rows import TurnRow
from gateway.parse.body import read


def insert_turn(connection: Connection, **row: Any) -> None:
    """One turn that begins with no other; takes `messages`, `tools` and `request_body` beside the columns."""
    said = {name: row.pop(name) for name in ("messages", "tools") if name in row}
    body = row.pop("request_body", None) or json.dumps(said).encode()
    ids = {name: np.array(row[name], np.int32) for name in ("prompt_ids", "response_ids") if name in row}
    period = partitions.period_of(row["id"], partitions.periods(connection))
    whole = TurnRow(
        id=row["id"],
        request_id=row["id"],
        tenant=row["tenant"],
        kind="main",
        endpoint="/v1/chat/completions",
        status="ok",
        body=read(body)[1],
        started_at=datetime(2026, 5, 1, tzinfo=UTC),
        **ids,
    )
    stored = layout.lay(whole, period, [], None)
    contents.keep(connection, stored.contents)
    connection.execute(insert(turns).values(**row | stored.columns))
