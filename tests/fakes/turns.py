"""Rows for tests of the learner: a turn, its state, and what belongs to it, without a gateway."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from sqlalchemy import Connection, insert

from dukou.store.states import Stage
from dukou.store.tables import scores, turn_states
from tests.fakes.rows import insert_turn

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def turn_id(number: int) -> uuid.UUID:
    """Ids in the order of their numbers, as UUIDv7 has them."""
    return uuid.UUID(int=(0x7 << 76) | (0x2 << 62) | (number << 80))


def add_turn(
    connection: Connection,
    number: int,
    stage: Stage,
    reason: str | None = None,
    *,
    policy_id: int | None = None,
    next_number: int | None = None,
    said: str = "hello",
    score: float | None = None,
    **more: Any,
) -> uuid.UUID:
    """One turn of session `s<number>` that says `said`; `more` are columns of `turns`."""
    this = turn_id(number)
    messages = [{"role": "user", "content": said}]
    row = {
        "id": this,
        "request_id": this,
        "tenant": "t",
        "policy_id": policy_id,
        "policy_version_min": 0,
        "policy_version_max": 0,
        "session_id": f"s{number}",
        "segment_id": this,
        "ordinal": 0,
        "kind": "side" if reason in ("side", "endpoint") else "main",
        "session_source": "new",
        "endpoint": "/v1/chat/completions",
        "stream": False,
        "status": "ok",
        "messages": messages,
        "response_text": "hi",
        "prompt_ids": np.array([1, 2], np.int32),
        "response_ids": np.array([3], np.int32),
        "response_logprobs": np.array([-0.5], np.float32),
        "capture": "sampled",
        "sampling_class": "free",
        "temperature": 1.0,
        "trainable": True,
        "started_at": NOW + timedelta(seconds=number),
    }
    insert_turn(connection, **row | more)
    following = None if next_number is None else turn_id(next_number)
    state = {"turn_id": this, "tenant": "t", "policy_id": policy_id, "stage": stage, "reason": reason}
    connection.execute(insert(turn_states).values(**state, next_turn_id=following))
    if score is not None:
        values = {"turn_id": this, "judge": "rules@1", "rubric": "rules@1", "value": score}
        connection.execute(insert(scores).values(**values, reason="majority"))
    return this
