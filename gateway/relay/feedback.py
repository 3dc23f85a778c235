"""`POST /v1/feedback`: what somebody thinks of an answer, into the spool and so, in time, to its turn.

Like a turn it is on disk before it is acknowledged, and needs no Postgres. Whether the turn exists is not
known here: feedback for one that does not is kept, and changes nothing.
"""

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid5

import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    field_validator,
    model_validator,
)

from gateway.relay import identity
from gateway.relay.client import Send
from gateway.relay.ending import TENANT
from gateway.relay.endpoint import Receive, Scope
from gateway.relay.errors import BadRequestError, GatewayError, MethodNotAllowedError, TooLargeError
from gateway.spool.records import FeedbackRecord
from gateway.spool.writer import SpoolWriter

PATH = "/v1/feedback"

_RATINGS = {"up": 1, "good": 1, "positive": 1, "down": -1, "bad": -1, "negative": -1, "neutral": 0}
_TURN = re.compile(r"(?:chatcmpl-)?([0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12})", re.I)
_IDS = UUID("6f3c2c1e-6a53-5d0c-9b57-6b1a4f3d8c11")  # the namespace of ids made from idempotency keys
_LONGEST = 100_000  # characters of a comment or a corrected answer
_LARGEST = 2**20  # bytes


class NotRecordedError(GatewayError):
    """The spool is full or its disk is broken; another try may help."""

    status, type, code = 503, "service_unavailable", "feedback_not_recorded"


class Outcome(BaseModel):
    """What the environment says: a test run, a tool, a purchase."""

    model_config = ConfigDict(extra="allow")
    success: StrictBool


class Body(BaseModel):
    """The request's body."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    turn_id: str | None = None
    completion_id: str | None = None
    session_id: str | None = Field(None, min_length=1, max_length=256)
    choice_index: int = Field(0, ge=0, le=1023)
    rating: int | None = Field(None, ge=-1, le=1)
    score: float | None = Field(None, ge=-1, le=1)
    comment: str | None = Field(None, min_length=1, max_length=_LONGEST)
    correction: str | None = Field(None, min_length=1, max_length=_LONGEST)
    outcome: Outcome | None = None
    user: str | None = Field(None, max_length=256)

    @field_validator("rating", mode="before")
    @classmethod
    def _in_words(cls, value: object) -> object:
        if isinstance(value, bool):
            return 1 if value else -1
        return _RATINGS.get(value.strip().lower(), value) if isinstance(value, str) else value

    @field_validator("turn_id", "completion_id")
    @classmethod
    def _is_ours(cls, value: str | None) -> str | None:
        if value is None:
            return None
        match = _TURN.fullmatch(value.strip())
        if match is None:
            raise ValueError("is not an id of ours: take the x-turn-id header of the answer")
        return match[1].replace("-", "").lower()

    @model_validator(mode="after")
    def _names_and_says(self) -> "Body":
        if not (self.turn_id or self.completion_id or self.session_id):
            raise ValueError("name a turn by turn_id or completion_id, or a session by session_id")
        if self.turn_id and self.completion_id and self.turn_id != self.completion_id:
            raise ValueError("turn_id and completion_id are not the same turn")
        if not self.says_something:
            raise ValueError("say something: rating, score, comment, correction or outcome")
        return self

    @property
    def says_something(self) -> bool:
        said = (self.rating, self.score, self.comment, self.correction, self.outcome)
        return any(value is not None for value in said)


async def serve(
    scope: Scope,
    receive: Receive,
    send: Send,
    spool: SpoolWriter,
    headers: Mapping[str, str],
    key_id: str | None,
) -> None:
    """One request. Raises GatewayError where it is refused."""
    if scope["method"] != "POST":
        raise MethodNotAllowedError(f"use POST {PATH}", headers=((b"allow", b"POST"),))
    raw = await _read(receive)
    if raw is None:
        return
    answer = orjson.dumps(await accept(spool, raw, headers, key_id))
    length = (b"content-length", b"%d" % len(answer))
    told = [(b"content-type", b"application/json"), length]
    await send({"type": "http.response.start", "status": 202, "headers": told})
    await send({"type": "http.response.body", "body": answer})


async def _read(receive: Receive) -> bytes | None:
    """The whole body; None where the client left before it was here. Raises TooLargeError."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > _LARGEST:
            raise TooLargeError(f"feedback may have {_LARGEST} bytes", headers=((b"connection", b"close"),))
        if not message.get("more_body", False):
            return b"".join(parts)


async def accept(
    spool: SpoolWriter, raw: bytes, headers: Mapping[str, str], key_id: str | None
) -> dict[str, Any]:
    """Spools one feedback; returns the body of the 202.

    Raises:
        BadRequestError: it can never be accepted as it is.
        NotRecordedError: it is not on disk.
    """
    at_ns = time.time_ns()
    body = parse(raw)
    feedback_id = id_of(headers.get("idempotency-key"), key_id, at_ns)
    record = _record(body, feedback_id, at_ns, key_id)
    if not spool.feedback(record):
        raise NotRecordedError("the feedback could not be recorded: send it again later")
    if spool.syncs_each_turn:
        await asyncio.to_thread(spool.sync)
    told: dict[str, Any] = {"id": feedback_id, "object": "feedback", "created": at_ns // 10**9}
    about = {"turn_id": record.turn_id, "session_id": record.session_id}
    return told | {name: value for name, value in about.items() if value is not None}


def _record(body: Body, feedback_id: str, at_ns: int, key_id: str | None) -> FeedbackRecord:
    return FeedbackRecord(
        id=feedback_id,
        at_ns=at_ns,
        tenant=TENANT,
        key_id=key_id,
        turn_id=body.turn_id or body.completion_id,
        session_id=body.session_id,
        choice_index=body.choice_index,
        rating=body.rating,
        score=body.score,
        comment=body.comment,
        correction=body.correction,
        outcome=None if body.outcome is None else body.outcome.model_dump(exclude_none=True),
        user=body.user,
    )


def parse(raw: bytes) -> Body:
    """Raises BadRequestError, which names the field and never repeats what was said."""
    try:
        return Body.model_validate(orjson.loads(raw))
    except orjson.JSONDecodeError:
        raise BadRequestError("the body is not JSON") from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or None
        words = first["msg"].removeprefix("Value error, ")
        raise BadRequestError(f"{field}: {words}" if field else words, param=field) from None


def id_of(idempotency_key: str | None, key_id: str | None, at_ns: int) -> str:
    """The same for the same key of the same client, so that a repeated request is one feedback."""
    if not idempotency_key:
        return identity.new_turn_id(at_ns)
    return uuid5(_IDS, f"{TENANT}\n{key_id}\n{idempotency_key}").hex
