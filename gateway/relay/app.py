"""One ASGI app, wired in one place: the relay for what is hot, a small FastAPI app for the rest."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi import FastAPI

from gateway.relay import auth, ending, errors, identity
from gateway.relay.client import Send
from gateway.relay.endpoint import PATHS, Receive, Relay, Scope
from gateway.relay.errors import GatewayError
from gateway.relay.health import Health
from gateway.relay.routes import Router
from gateway.relay.side import make_side_app
from gateway.relay.turn import Services
from gateway.relay.upstream import Headers, Upstreams
from gateway.spool.writer import SpoolWriter
from store.config_model import Config
from store.paths import StatePaths

logger = logging.getLogger(__name__)

_STOP_SECONDS = 10.0  # for turns still running when the server has stopped listening


class GatewayApp:
    """Keys, CORS and errors around everything; then the relay or the side app."""

    def __init__(self, config: Config) -> None:
        paths = StatePaths.for_config(config)
        gateway = config.gateway
        self._keys = auth.Keys(gateway.keys)
        self._spool = SpoolWriter(paths.spool, gateway.spool)
        self._upstreams = Upstreams(gateway.connect_timeout, gateway.idle_timeout)
        router = Router(paths.routes_file, config.engine.urls)
        self.health = Health(self._spool, router, self._upstreams)
        key = config.engine.api_key.get_secret_value()
        services = Services(
            router, self._upstreams, self._spool, self.health, key, (config.engine.served_name,)
        )
        self._relay = Relay(services, gateway.max_body_bytes, gateway.write_timeout)
        self._side: FastAPI = make_side_app(services)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        cors = auth.cors(headers)
        begun = False

        async def watched(message: MutableMapping[str, Any]) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._dispatch(scope, receive, watched, headers, cors)
        except GatewayError as error:
            await _refuse(send, error, cors)
        except Exception:
            logger.exception("%s %s", scope["method"], scope["path"])
            if begun:
                raise
            await _refuse(send, GatewayError("internal error"), cors)

    async def _dispatch(
        self, scope: Scope, receive: Receive, send: Send, headers: dict[str, str], cors: Headers
    ) -> None:
        if scope["method"] == "OPTIONS":
            await _respond(send, 204, auth.preflight(headers), b"")
            return
        path, path_session = identity.split_path(scope["path"])
        key_id = None if path in auth.OPEN_PATHS else self._keys.check(headers)
        if path in PATHS:
            await self._relay.serve(
                scope,
                receive,
                send,
                path=path,
                path_session=path_session,
                headers=headers,
                key_id=key_id,
                cors=cors,
            )
        else:
            await self._side({**scope, "path": path}, receive, _with_headers(send, cors))

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            self._spool.open()
        except OSError as error:
            await send({"type": "lifespan.startup.failed", "message": f"the spool: {error}"})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _stop(self) -> None:
        if self.health.turns:
            await asyncio.wait(self.health.turns, timeout=_STOP_SECONDS)
        self._upstreams.close()
        self._spool.close()


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
