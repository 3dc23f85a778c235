"""One turn on its way through a worker: ask an engine, pass its answer on, record both.

A turn runs in a task of its own, so that a client who leaves, or a server that stops, cannot keep it from
being recorded. The order at the end is always: the engine's last word, the reply record, the client's
last byte.
"""

import asyncio
import contextlib
import logging
from typing import Any

import orjson

from gateway import privacy
from gateway.relay import admission, capture, ending, identity, retry, settle
from gateway.relay.client import Client, Inbound
from gateway.relay.connection import Request
from gateway.relay.ending import Ending
from gateway.relay.errors import (
    COUNTED,
    GatewayError,
    UpstreamClosedError,
    UpstreamConnectError,
    UpstreamError,
)
from gateway.relay.metrics import Stopwatch
from gateway.relay.passing import Answer
from gateway.relay.routes import Engine
from gateway.relay.services import Services
from gateway.relay.upstream import Reply

logger = logging.getLogger(__name__)

_ABORT_SECONDS = 0.9  # how long an engine may take to say what it had made for a client who has left


class Turn:
    """One request and its answer."""

    def __init__(self, services: Services, inbound: Inbound, client: Client) -> None:
        self._services = services
        self._inbound = inbound
        self._client = client
        self._parsed: dict[str, Any] = {}
        self._stated = identity.UNKNOWN
        self._engine: Engine | None = None
        self._forward: capture.Forward | None = None
        self._watch = services.suspects.watch(inbound.path, inbound.body)
        self._answer = Answer(client, inbound.path, self._watch.begun)
        self._own = Stopwatch()
        self._requested = self._recorded = False
        self._task: asyncio.Task[None] | None = None
        self._aborting: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Begins the turn in a task of its own, which lives until it is recorded."""
        self._task = task = asyncio.create_task(self._run())
        turns = self._services.health.turns
        turns.add(task)
        task.add_done_callback(turns.discard)
        return task

    def client_gone(self) -> None:
        """Nobody listens any more: the engine is told to stop, and what it had made is recorded."""
        if self._client.gone is None and not self._recorded:
            self._client.gone = "the client closed the connection"
            self._stop_engine()

    async def _run(self) -> None:
        end = await self._ended()
        self._own.run()
        if self._aborting is not None:
            self._aborting.cancel()
        await self._record(end)
        if end.status is not None:
            await self._client.begin(end.status, end.headers)
        await self._client.send(end.last, more=False)
        self._own.pause()
        status = self._client.status or 499  # the client left before there was one
        self._services.health.metrics.answered(self._inbound.path, status, self._own.seconds)

    async def _ended(self) -> Ending:
        try:
            return await self._served()
        except GatewayError as error:
            if error.code in COUNTED:
                self._services.health.metrics.refused(str(error.code))
            return ending.failed(error, begun=self._client.status is not None)
        except asyncio.CancelledError:
            if self._client.gone is None or self._task is None:
                raise
            self._task.uncancel()
            return Ending("client_disconnect")
        except Exception as error:  # a fault of ours must not cost the record
            logger.exception("turn %s", self._inbound.id)
            ours = GatewayError(f"internal error ({type(error).__name__})")
            return ending.failed(ours, begun=self._client.status is not None)

    async def _served(self) -> Ending:
        self._understand()
        router, tried = self._services.router, retry.Attempts()
        while True:
            self._own.pause()
            taken = await router.take(self._affinity(), tried.engines)
            self._own.run()
            engine = self._engine = self._settled(taken)
            self._client.version = engine.version_low
            try:
                return await self._answered_by(engine)
            except UpstreamConnectError as error:
                failure: UpstreamError = error
                tried = tried.not_sent(engine.url)
            except UpstreamClosedError as error:
                failure = error
                tried = tried.sent_and_lost(engine.url)
                await self._lost(engine)
            finally:
                router.give_back(engine.url)
            router.suspect(engine.url)
            urls = [other.url for other in router.routes().engines]
            begun, gone = self._answer.first_byte_ns is not None, self._client.gone is not None
            if not retry.may_retry(tried, urls, begun=begun, gone=gone):
                raise failure

    def _understand(self) -> None:
        """Raises BadRequestError where the request is refused before an engine is chosen."""
        inbound = self._inbound
        try:
            self._parsed = capture.parse(inbound.body)
        finally:  # a body that cannot be read has headers all the same
            self._stated = identity.identify(inbound.path_session, inbound.headers, self._parsed)
        self._client.session = self._stated.session
        capture.check(inbound.path, self._parsed, self._services.models)
        admission.check_fields(self._parsed, self._services.refused_fields)
        admission.check_choices(inbound.path, self._parsed)
        admission.check_ids(inbound.path, self._parsed, self._services.router.routes().vocab_size)
        self._watch.check()

    async def _answered_by(self, engine: Engine) -> Ending:
        """The answer of one engine. Raises GatewayError where there is none, or not all of it."""
        self._own.pause()
        await self._watch.admitted(engine.url)
        self._own.run()
        try:
            async with await self._ask(engine) as reply:
                end = await self._passed_on(reply)
        finally:
            self._watch.leave()
        if end.outcome == "ok":
            self._watch.whole()
        return end

    async def _lost(self, engine: Engine) -> None:
        """The engine had the request, and closed the connection before its answer was whole.

        Either it has died, perhaps of this request; or it lives and may still be at work on it for nobody.
        """
        self._own.pause()
        if await self._services.upstreams.is_gone(engine.url):
            self._watch.died(engine.url, begun=self._answer.first_byte_ns is not None)
            self._services.health.metrics.died()
        else:
            await self._tell_to_abort(engine)
        self._own.run()

    async def _ask(self, engine: Engine) -> Reply:
        """Sends the request; again without capture fields where an engine seems to refuse those."""
        health, pool = self._services.health, self._services.upstreams.pool(engine.url)
        forward = self._prepared(engine, capturing=health.may_capture(engine.url))
        self._record_request(forward.added)
        self._own.pause()
        reply = await pool.send(self._request(forward))
        if reply.status not in (400, 422) or not forward.captures or health.captures(engine.url):
            return reply
        async with reply:
            await reply.body()
        reply = await pool.send(self._request(self._prepared(engine, capturing=False)))
        if reply.status < 400:
            logger.warning("%s refuses to give token ids: its turns cannot be trained", engine.url)
            health.capture_refused(engine.url)
        return reply

    async def _passed_on(self, reply: Reply) -> Ending:
        forward = self._forward
        assert forward is not None
        choices = self._parsed.get("n")
        end = await self._answer.pass_on(
            reply, forward.cuts, choices if isinstance(choices, int) else 1, self._stop_engine
        )
        if forward.captures and self._engine is not None:
            self._services.health.saw_ids(self._engine.url, self._answer.ids_seen)
        return end

    def _prepared(self, engine: Engine, *, capturing: bool) -> capture.Forward:
        route = capture.Recipient(engine.version_low, engine.adapter, engine.dialect)
        self._forward = capture.prepare(
            self._inbound.path, self._parsed, self._inbound.id, route, capturing=capturing
        )
        return self._forward

    def _request(self, forward: capture.Forward) -> Request:
        return Request("POST", self._inbound.path, self._engine_headers(), forward.body)

    def _engine_headers(self) -> list[tuple[bytes, bytes]]:
        headers = [(b"content-type", b"application/json")]
        for name in ("accept", "traceparent", "tracestate"):
            if name in self._inbound.headers:
                headers.append((name.encode(), self._inbound.headers[name].encode("latin-1")))
        if self._services.engine_key:
            headers.append((b"authorization", b"Bearer " + self._services.engine_key.encode()))
        return headers

    def _settled(self, engine: Engine) -> Engine:
        """The engine at the version that this session gets."""
        others, stated = self._services.router.routes().others, self._stated.session
        if others.trial is None and not others.pins:
            return engine
        session = f"{ending.TENANT}/{stated.id}" if stated is not None else None
        return settle.version_for_session(engine, others, session, repr(self._conversation()))

    def _affinity(self) -> object:
        return None if len(self._services.router.routes().engines) < 2 else self._conversation()

    def _conversation(self) -> object:
        """A session, or the cheap stand-in for one: who asks, and how the conversation opened."""
        if self._stated.session is not None:
            return self._stated.session.id
        messages = self._parsed.get("messages")
        return self._inbound.key_id, repr(messages[:2]) if isinstance(messages, list) else None

    def _record_request(self, added: tuple[str, ...]) -> None:
        if not self._requested:
            self._requested = True
            if self._is_unrecorded():
                return
            stream = self._parsed.get("stream") is True
            meta = ending.request_meta(self._inbound, self._stated, self._engine, added, stream)
            self._services.spool.request(meta, self._inbound.body)

    def _is_unrecorded(self) -> bool:
        return privacy.forbids_recording(self._parsed, self._services.store_false)

    async def _record(self, end: Ending) -> None:
        self._record_request(())
        self._recorded = True
        if self._is_unrecorded():
            self._services.health.metrics.unrecorded("store_false")
            return
        spool, sent_to, gone = self._services.spool, self._engine, self._client.gone
        meta = ending.reply_meta(
            self._inbound.id,
            end,
            status=self._client.status if gone else end.status or self._client.status,
            gone=gone,
            first_byte_ns=self._answer.first_byte_ns,
            sent_to=sent_to,
            engine_now=None if sent_to is None else self._services.router.engine(sent_to.url),
        )
        spool.reply(meta, b"".join(self._answer.raw))
        if spool.syncs_each_turn:
            await asyncio.to_thread(spool.sync)

    def _stop_engine(self) -> None:
        if self._aborting is None:
            self._aborting = asyncio.create_task(self._abort())

    async def _abort(self) -> None:
        """Tells the engine, lets it say what it had made, for a while, and then cuts the turn off."""
        if self._engine is not None and await self._tell_to_abort(self._engine):
            await asyncio.sleep(_ABORT_SECONDS)
        if self._task is not None:
            self._task.cancel()

    async def _tell_to_abort(self, engine: Engine) -> bool:
        """Whether the engine was told, and has agreed, to stop working on this turn."""
        if self._forward is None or not self._forward.abortable:
            return False
        body = orjson.dumps({"rid": self._inbound.id})
        request = Request("POST", "/abort_request", self._engine_headers(), body)
        with contextlib.suppress(UpstreamError, TimeoutError):
            async with asyncio.timeout(_ABORT_SECONDS):
                async with await self._services.upstreams.pool(engine.url).send(request) as reply:
                    await reply.body()
            return reply.status == 200
        return False
