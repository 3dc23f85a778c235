"""How a turn ends, and the two records that say how it went. Pure."""

import time
from dataclasses import dataclass, field

from gateway.relay import errors
from gateway.relay.client import Inbound
from gateway.relay.errors import BusyError, GatewayError, UpstreamClosedError
from gateway.relay.identity import Identity, recorded_headers
from gateway.relay.upstream import Headers
from gateway.routes import EngineRoute
from gateway.spool.records import ReplyRecord, RequestRecord, StatedSession

TENANT = "default"


@dataclass(frozen=True, slots=True)
class Ending:
    """The outcome, and what the client still has to get once it is recorded."""

    outcome: str  # ok | truncated | upstream_error | client_disconnect | rejected
    status: int | None = None  # of the response, where none has gone out yet
    headers: Headers = field(default_factory=list)
    last: bytes = b""
    error: str | None = None


def failed(error: GatewayError, *, begun: bool) -> Ending:
    """The ending for an error; a stream that has begun gets it as its last event, never as a `stop`."""
    ours = isinstance(error, BusyError)  # no engine has heard of it
    refused = (ours or (error.status < 500 and error.status not in (408, 429))) and not begun
    outcome = "rejected" if refused else "upstream_error"
    if isinstance(error, UpstreamClosedError) and not error.reset:
        outcome = "truncated"
    if begun:
        return Ending(outcome, last=errors.frame_of(error), error=error.message)
    body = errors.body_of(error)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        *error.headers,
    ]
    return Ending(outcome, error.status, headers, body, error.message)


def request_record(
    inbound: Inbound, stated: Identity, engine: EngineRoute | None, added: tuple[str, ...], stream: bool
) -> RequestRecord:
    """The record of a request; `added` are the fields that Dukou asks the engine for."""
    session = stated.session
    return RequestRecord(
        id=inbound.id,
        at_ns=inbound.at_ns,
        tenant=TENANT,
        key_id=inbound.key_id,
        path=inbound.path,
        headers=recorded_headers(inbound.headers),
        session=None if session is None else StatedSession(session.id, session.source),
        turn_type=stated.turn_type,
        session_done=stated.session_done,
        parent=stated.parent,
        engine=None if engine is None else engine.url,
        added=added,
        stream=stream,
        body=inbound.body,
    )


def reply_record(
    turn_id: str,
    ending: Ending,
    body: bytes,
    *,
    status: int | None,
    gone: str | None,
    first_byte_ns: int | None,
    sent_to: EngineRoute | None,
    engine_now: EngineRoute | None,
) -> ReplyRecord:
    """The record of a reply that ends now; `body` is the upstream's.

    Its version span is what was low when the request was sent and high when the reply ended.
    """
    low = sent_to.version_low if sent_to is not None else None
    ended_at = sent_to if sent_to is not None and sent_to.exact else engine_now
    high = ended_at.version_high if ended_at is not None else None
    known = low is not None and high is not None
    return ReplyRecord(
        id=turn_id,
        outcome=ending.outcome if gone is None else "client_disconnect",
        http_status=status,
        first_byte_ns=first_byte_ns,
        finished_ns=time.time_ns(),
        version_min=low if known else None,
        version_max=high if known else None,
        engine=sent_to.url if sent_to is not None else None,
        adapter=sent_to.adapter if sent_to is not None else None,
        sampling_defaults=sent_to.facts.sampling_defaults if sent_to is not None else None,
        tool_calling=sent_to.facts.tool_calling if sent_to is not None else None,
        error=gone or ending.error,
        body=body,
    )
