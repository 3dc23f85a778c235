"""A turn's row of `turns`: what happened, and where the turn belongs. Pure."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt

from dukou.store.body import Body


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRow:
    """What happened. None is unknown; why is in `untrainable_reason`. A request has one row per choice."""

    id: UUID
    request_id: UUID  # the id of choice 0
    choice_index: int = 0
    tenant: str
    key_id: str | None = None
    user_name: str | None = None
    policy_id: int | None = None
    policy_version_min: int | None = None
    policy_version_max: int | None = None
    kind: str
    kind_reason: str | None = None
    endpoint: str
    stream: bool = False
    model: str | None = None
    engine: str | None = None
    status: str
    error: str | None = None
    http_status: int | None = None
    body: Body
    sampling: Any = None
    sampling_defaults: Any = None
    response_text: str | None = None
    reasoning_text: str | None = None
    tool_calls: Any = None
    finish_reason: str | None = None
    matched_stop: str | None = None
    stopped_by: str | int | None = None  # the same with its type
    usage: Any = None
    prompt_ids: npt.NDArray[np.int32] | None = None  # [prompt tokens]
    response_ids: npt.NDArray[np.int32] | None = None  # [response tokens]
    response_logprobs: npt.NDArray[np.float32] | None = None  # [response tokens], nats; NaN: missing
    trained_tokens: npt.NDArray[np.int32] | None = None  # begins and ends by turns; None: all
    capture: str = "none"
    sampling_class: str | None = None
    temperature: float | None = None
    untrainable_reason: str | None = None
    text_altered: bool = False
    history_hash: bytes | None = None
    prompt_hash: bytes | None = None
    exchange_hash: bytes | None = None
    client_request_id: str | None = None
    started_at: datetime
    first_token_at: datetime | None = None
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a turn belongs: the part of its row that lineage decides."""

    session_id: str
    session_source: str
    segment_id: UUID
    parent_id: UUID | None = None
    parent_messages: int | None = None
    retry_of: UUID | None = None
    ordinal: int = 0

    def at(self, ordinal: int, segment_id: UUID) -> "Place":
        """The same place, counted."""
        return replace(self, ordinal=ordinal, segment_id=segment_id)
