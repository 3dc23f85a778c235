"""What passes between a turn and one engine: the request, the head of its reply, and the order to stop."""

import asyncio
import contextlib
import logging
from dataclasses import dataclass

import orjson

from gateway.relay import capture
from gateway.relay.capture import Forward
from gateway.relay.client import Inbound
from gateway.relay.errors import UpstreamError
from gateway.relay.request import ParsedRequest
from gateway.relay.services import Services
from gateway.relay.upstream import Headers, Reply, Request
from gateway.routes import EngineRoute

logger = logging.getLogger(__name__)

#: How long an engine has to confirm an abort, and then again to send what it had generated.
ABORT_SECONDS = 0.9
_PASSED_HEADERS = ("accept", "traceparent", "tracestate")  # of the client's request


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request that an engine has got, and its reply, of which the head has come."""

    forward: Forward  # what was sent last
    reply: Reply


def prepare(request: ParsedRequest, engine: EngineRoute, *, capturing: bool) -> Forward:
    """The request as `engine` gets it; with `capturing` false, it is not asked for token ids."""
    recipient = capture.Recipient(engine.version_low, engine.adapter, engine.capture_dialect)
    inbound = request.inbound
    return capture.prepare(inbound.path, request.body, inbound.id, recipient, capturing=capturing)


async def send(services: Services, request: ParsedRequest, engine: EngineRoute, forward: Forward) -> Exchange:
    """Sends `forward` to `engine`; again without capture fields where the engine seems to refuse those.

    Raises:
        UpstreamError: no connection, or no head of a reply.
    """
    health, pool = services.health, services.upstreams.pool(engine.url)
    reply = await pool.send(_post(services, request.inbound, forward))
    if reply.status not in (400, 422) or not forward.captures or health.captures(engine.url):
        return Exchange(forward, reply)
    async with reply:
        await reply.body()
    forward = prepare(request, engine, capturing=False)
    reply = await pool.send(_post(services, request.inbound, forward))
    if reply.status < 400:
        logger.warning("%s refuses to give token ids: its turns cannot be trained", engine.url)
        health.capture_refused(engine.url)
    return Exchange(forward, reply)


async def abort(services: Services, inbound: Inbound, url: str) -> bool:
    """Tells the engine at `url` to stop working on a turn. Returns True when the engine confirms it."""
    body = orjson.dumps({"rid": inbound.id})
    request = Request("POST", "/abort_request", _headers(services, inbound), body)
    with contextlib.suppress(UpstreamError, TimeoutError):
        async with asyncio.timeout(ABORT_SECONDS):
            async with await services.upstreams.pool(url).send(request) as reply:
                await reply.body()
        return reply.status == 200
    return False


def _post(services: Services, inbound: Inbound, forward: Forward) -> Request:
    return Request("POST", inbound.path, _headers(services, inbound), forward.body)


def _headers(services: Services, inbound: Inbound) -> Headers:
    headers = [(b"content-type", b"application/json")]
    for name in _PASSED_HEADERS:
        if name in inbound.headers:
            headers.append((name.encode(), inbound.headers[name].encode("latin-1")))
    return headers + services.engine_auth
