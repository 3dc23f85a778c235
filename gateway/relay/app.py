"""A worker's ASGI app: the relay for requests to engines, small FastAPI apps for everything else."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi import FastAPI

from dukou.settings.model import Config
from dukou.settings.paths import StatePaths
from gateway.relay import admin, admission, auth, ending, errors, feedback, identity, metrics
from gateway.relay.client import RequestHead, Send
from gateway.relay.connection import Headers
from gateway.relay.endpoint import PATHS, Receive, Relay, Scope
from gateway.relay.errors import GatewayError
from gateway.relay.health import Health
from gateway.relay.metrics import Metrics
from gateway.relay.routes import Router
from gateway.relay.services import Services
from gateway.relay.side import make_service_app
from gateway.relay.suspects import Suspects
from gateway.relay.upstream import Upstreams
from gateway.spool.writer import SpoolWriter

logger = logging.getLogger(__name__)

_STOP_SECONDS = 10.0  # for turns that still run when the server stops


class GatewayApp:
    """Checks keys, adds CORS headers, answers errors, and passes each request to the part that serves it."""

    def __init__(self, config: Config) -> None:
        paths = StatePaths.for_config(config)
        gateway = config.gateway
        self._keys = auth.Keys(gateway.keys)
        self._spool = SpoolWriter(paths.spool, gateway.spool)
        self._upstreams = Upstreams(gateway.connect_timeout, gateway.idle_timeout)
        self.suspects = Suspects(paths.suspects)
        router = Router(paths.routes_file, config.engine.urls, gateway.max_held)
        self.health = Health(self._spool, router, self._upstreams, Metrics(paths.metrics, self._spool))
        services = Services(
            router=router,
            upstreams=self._upstreams,
            spool=self._spool,
            health=self.health,
            suspects=self.suspects,
            engine_key=config.engine.api_key.get_secret_value(),
            models=(config.engine.served_name,),
            store_false=config.privacy.store_false,
            refused_fields=_refused_fields(config, self._keys),
        )
        self._relay = Relay(services, gateway.max_body_bytes, gateway.write_timeout)
        self._service_app: FastAPI = make_service_app(services)
        self._admin = admin.Admin(config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        cors = auth.cors(headers)
        begun = False  # whether any of the response was sent

        async def send_and_note(message: MutableMapping[str, Any]) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._dispatch(scope, receive, send_and_note, headers, cors)
        except GatewayError as error:
            self._count(scope, error.status)
            await _refuse(send, error, cors)
        except Exception:  # the boundary of a request: a fault in the code must not end the worker
            logger.exception("%s %s", scope["method"], scope["path"])
            if begun:
                raise
            await _refuse(send, GatewayError("internal error"), cors)

    def _count(self, scope: Scope, status: int) -> None:
        """Counts a refusal. Unknown paths share one label, so that clients cannot create labels."""
        path = identity.split_path(scope["path"])[0]
        self.health.metrics.answered(path if path in PATHS else "other", status)

    async def _dispatch(
        self, scope: Scope, receive: Receive, send: Send, headers: dict[str, str], cors: Headers
    ) -> None:
        if scope["method"] == "OPTIONS":
            await _respond(send, 204, auth.preflight(headers), b"")
            return
        if scope["path"].startswith(admin.PREFIX):
            await self._admin.serve(scope, receive, _with_headers(send, cors), headers)
            return
        path, path_session = identity.split_path(scope["path"])
        key_id = None if auth.is_open(path, scope, headers) else self._keys.check(headers)
        if path in PATHS:
            head = RequestHead(scope["method"], path, path_session, headers, key_id)
            await self._relay.serve(head, receive, send, cors)
        elif path == feedback.PATH:
            await feedback.serve(scope, receive, _with_headers(send, cors), self._spool, headers, key_id)
        else:
            await self._service_app({**scope, "path": path}, receive, _with_headers(send, cors))

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            self._spool.open()
        except OSError as error:
            await send({"type": "lifespan.startup.failed", "message": f"the spool: {error}"})
            return
        counting = asyncio.create_task(self._save_counts())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        counting.cancel()
        await self._stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _save_counts(self) -> None:
        while True:
            self.health.metrics.save(len(self.health.turns))
            await asyncio.sleep(metrics.SAVE_SECONDS)

    async def _stop(self) -> None:
        if self.health.turns:
            await asyncio.wait(self.health.turns, timeout=_STOP_SECONDS)
        self._upstreams.close()
        self._admin.close()
        self._spool.close()
        self.health.metrics.close()


def _refused_fields(config: Config, keys: auth.Keys) -> frozenset[str]:
    """The body fields that requests may not use; none where only users of this machine can reach it."""
    shared = bool(keys) or not config.gateway.on_loopback
    return admission.PRIVATE if config.engine.private_fields == "refuse" and shared else frozenset()


def _with_headers(send: Send, extra: Headers) -> Callable[[MutableMapping[str, Any]], Awaitable[None]]:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *extra]}
        await send(message)

    return sending


async def _refuse(send: Send, error: GatewayError, cors: Headers) -> None:
    end = ending.failed(error, begun=False)
    await _respond(send, error.status, [*end.headers, *cors], errors.body_of(error))


async def _respond(send: Send, status: int, headers: Headers, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
