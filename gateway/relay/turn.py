"""One turn of a worker: ask an engine, pass its reply on, record both.

Each stage takes values and returns values:

    Inbound ── parse ──► ParsedRequest ── check, Router.take, version_for_session ──► EngineRoute
    ── prepare ──► Forward ── send ──► Exchange ── pass_on ──► RelayResult ──► Ending ──► the two records

A turn runs in a task of its own, so that neither a client that leaves nor a server that stops can keep it
from being recorded. It can be cut off in any stage; what its end then needs is in `Progress`. The order at
the end is always: the engine's last bytes, the reply record, the client's last bytes.
"""

import asyncio
import logging
from dataclasses import dataclass, field

from gateway.parse import body
from gateway.relay import ending, exchange, request, routing
from gateway.relay.capture import Forward
from gateway.relay.client import Client, Inbound
from gateway.relay.ending import Ending
from gateway.relay.errors import (
    COUNTED,
    GatewayError,
    UpstreamClosedError,
    UpstreamConnectError,
    UpstreamError,
)
from gateway.relay.metrics import Stopwatch
from gateway.relay.request import ParsedRequest
from gateway.relay.response import ReceivedReply, ReplyRelay
from gateway.relay.services import Services
from gateway.routes import EngineRoute

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Progress:
    """How far a turn has come: the only part of it that changes."""

    engine: EngineRoute | None = None  # the last one that was chosen, at the version that the session gets
    abortable: bool = False  # whether the engine can be told to stop by the turn's id
    request_recorded: bool = False
    reply_recorded: bool = False
    received: ReceivedReply = field(default_factory=ReceivedReply)


class Turn:
    """One request and its reply, served by `task`, which ends when the turn is recorded and answered."""

    def __init__(self, services: Services, inbound: Inbound, client: Client) -> None:
        """Starts the task."""
        self._services = services
        self._inbound = inbound
        self._client = client
        self._watch = services.suspects.watch(inbound.path, inbound.body)
        self._own_time = Stopwatch()
        self._progress = Progress()
        self._aborting: asyncio.Task[None] | None = None
        self.task = asyncio.create_task(self._run())
        services.health.turns.add(self.task)
        self.task.add_done_callback(services.health.turns.discard)

    def client_gone(self) -> None:
        """Stops the engine, since the client has left; what it had generated is recorded."""
        if self._client.gone is None and not self._progress.reply_recorded:
            self._client.gone = "the client closed the connection"
            self._stop_engine()

    async def _run(self) -> None:
        parsed = request.parse(self._inbound)
        self._client.session = parsed.identity.session
        end = await self._serve(parsed)
        if self._aborting is not None:
            self._aborting.cancel()
        await self._record(parsed, end)
        if end.status is not None:
            await self._client.begin(end.status, end.headers)
        await self._client.send(end.last, more=False)
        self._own_time.pause()
        status = self._client.status or 499  # the client left before there was one
        self._services.health.metrics.answered(self._inbound.path, status, self._own_time.seconds)

    async def _serve(self, parsed: ParsedRequest) -> Ending:
        """The turn's ending, whatever happens on the way to it."""
        try:
            self._check(parsed)
            return await self._ask_engines(parsed)
        except GatewayError as error:
            if error.code in COUNTED:
                self._services.health.metrics.refused(str(error.code))
            return ending.failed(error, begun=self._client.status is not None)
        except asyncio.CancelledError:
            if self._client.gone is None:
                raise
            self.task.uncancel()
            return Ending("client_disconnect")
        except Exception as error:  # a fault of Dukou's own must not cost the record
            logger.exception("turn %s", self._inbound.id)
            internal = GatewayError(f"internal error ({type(error).__name__})")
            return ending.failed(internal, begun=self._client.status is not None)

    def _check(self, parsed: ParsedRequest) -> None:
        """Raises BadRequestError where the request is refused before an engine is chosen."""
        services = self._services
        request.check(
            parsed,
            models=services.models,
            refused_fields=services.refused_fields,
            vocab_size=services.router.routes().vocab_size,
        )
        self._watch.check()

    async def _ask_engines(self, parsed: ParsedRequest) -> Ending:
        """Asks one engine after another until one has replied, or none may be asked any more.

        Raises:
            GatewayError: no engine is ready, one refused the request, or the last one failed.
        """
        router, attempts = self._services.router, routing.Attempts()
        while True:
            with self._own_time.paused():
                taken = await router.take(self._affinity(parsed), attempts.engines)
            try:
                return await self._ask(parsed, self._version_for_session(parsed, taken))
            except UpstreamConnectError as error:
                failure: UpstreamError = error
                attempts = attempts.not_sent(taken.url)
            except UpstreamClosedError as error:
                failure = error
                attempts = attempts.sent_and_lost(taken.url)
                await self._handle_lost(taken.url)
            finally:
                router.give_back(taken.url)
            router.suspect(taken.url)
            urls = [engine.url for engine in router.routes().engines]
            begun, gone = self._progress.received.begun, self._client.gone is not None
            if not routing.may_retry(attempts, urls, begun=begun, gone=gone):
                raise failure

    def _affinity(self, parsed: ParsedRequest) -> object:
        """What the router prefers an engine by; None where there is no choice."""
        return None if len(self._services.router.routes().engines) < 2 else parsed.conversation

    def _version_for_session(self, parsed: ParsedRequest, engine: EngineRoute) -> EngineRoute:
        others, session = self._services.router.routes().others, parsed.identity.session
        if others.trial is None and not others.pins:
            return engine
        owner = f"{ending.TENANT}/{session.id}" if session is not None else None
        return routing.version_for_session(engine, others, owner, repr(parsed.conversation))

    async def _ask(self, parsed: ParsedRequest, engine: EngineRoute) -> Ending:
        """Sends the request to `engine` and passes its reply on.

        Raises:
            GatewayError: there is no reply, or not the whole of it.
        """
        self._progress.engine = engine
        self._client.version = engine.version_low
        with self._own_time.paused():
            await self._watch.admitted(engine.url)
        try:
            capturing = self._services.health.may_capture(engine.url)
            forward = exchange.prepare(parsed, engine, capturing=capturing)
            self._progress.abortable = forward.abortable
            self._record_request(parsed, forward.added)
            with self._own_time.paused():
                end = await self._exchange(parsed, engine, forward)
        finally:
            self._watch.leave()
        if end.outcome == "ok":
            self._watch.whole()
        return end

    async def _exchange(self, parsed: ParsedRequest, engine: EngineRoute, forward: Forward) -> Ending:
        sent = await exchange.send(self._services, parsed, engine, forward)
        async with sent.reply as reply:
            relay = ReplyRelay(
                reply,
                self._client,
                self._progress.received,
                on_first_byte=self._watch.begun,
                on_stall=self._stop_engine,
            )
            result = await relay.pass_on(self._inbound.path, sent.forward.cuts, parsed.choices)
        if sent.forward.captures:
            self._services.health.saw_ids(engine.url, result.has_token_ids)
        return result.ending

    async def _handle_lost(self, url: str) -> None:
        """Finds out why an engine closed the connection before its reply was whole.

        It has died, perhaps of this request: that is remembered. Or it lives, and may still be generating for
        no reader: it is told to stop.
        """
        with self._own_time.paused():
            if await self._services.upstreams.is_gone(url):
                self._watch.died(url, begun=self._progress.received.begun)
                self._services.health.metrics.died()
            else:
                await self._abort_at(url)

    def _record_request(self, parsed: ParsedRequest, added: tuple[str, ...]) -> None:
        """Appends the request record, once. `added`: the body fields that Dukou added for the engine."""
        if self._progress.request_recorded:
            return
        self._progress.request_recorded = True
        if not self._is_unrecorded(parsed):
            record = ending.request_record(
                self._inbound, parsed.identity, self._progress.engine, added, parsed.is_stream
            )
            self._services.spool.request(record)

    async def _record(self, parsed: ParsedRequest, end: Ending) -> None:
        """Appends the reply record, after the request record where that is still missing."""
        self._record_request(parsed, ())
        self._progress.reply_recorded = True
        if self._is_unrecorded(parsed):
            self._services.health.metrics.unrecorded("store_false")
            return
        spool, received = self._services.spool, self._progress.received
        engine, gone = self._progress.engine, self._client.gone
        record = ending.reply_record(
            self._inbound.id,
            end,
            b"".join(received.chunks),
            status=self._client.status if gone else end.status or self._client.status,
            gone=gone,
            first_byte_ns=received.first_byte_ns,
            sent_to=engine,
            engine_now=None if engine is None else self._services.router.engine(engine.url),
        )
        spool.reply(record)
        if spool.syncs_each_turn:
            await asyncio.to_thread(spool.sync)

    def _is_unrecorded(self, parsed: ParsedRequest) -> bool:
        return body.forbids_recording(parsed.body, self._services.store_false)

    def _stop_engine(self) -> None:
        if self._aborting is None:
            self._aborting = asyncio.create_task(self._abort())

    async def _abort(self) -> None:
        """Tells the engine to stop, waits for what it had generated, then cuts the turn off."""
        if self._progress.engine is not None and await self._abort_at(self._progress.engine.url):
            await asyncio.sleep(exchange.ABORT_SECONDS)
        self.task.cancel()

    async def _abort_at(self, url: str) -> bool:
        """Returns True when the engine confirms that it stops working on this turn."""
        return self._progress.abortable and await exchange.abort(self._services, self._inbound, url)
