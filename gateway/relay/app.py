"""A worker's ASGI app: the relay for requests to engines, small FastAPI apps for everything else.

One worker: a uvicorn server on its own listening socket, or on its supervisor's.
"""

import asyncio
import gc
import logging
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn
from fastapi import FastAPI

from dukou.settings.model import Config
from dukou.settings.paths import StatePaths
from gateway.relay import admin, admission, ending, errors, feedback, identity, metrics
from gateway.relay.api import make_service_app
from gateway.relay.client import RequestHead, Send
from gateway.relay.endpoint import PATHS, Receive, Relay, Scope
from gateway.relay.errors import GatewayError
from gateway.relay.health import Health
from gateway.relay.metrics import Metrics
from gateway.relay.router import Router
from gateway.relay.services import Services
from gateway.relay.suspects import Suspects
from gateway.relay.upstream import Headers, Upstreams
from gateway.spool.writer import SpoolWriter

logger = logging.getLogger(__name__)

_STOP_SECONDS = 10.0  # for turns that still run when the server stops


class GatewayApp:
    """Checks keys, adds CORS headers, answers errors, and passes each request to the part that serves it."""

    def __init__(self, config: Config) -> None:
        paths = StatePaths.for_config(config)
        gateway = config.gateway
        self._keys = identity.Keys(gateway.keys)
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
        cors = identity.cors(headers)
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
            await _respond(send, 204, identity.preflight(headers), b"")
            return
        if scope["path"].startswith(admin.PREFIX):
            await self._admin.serve(scope, receive, _with_headers(send, cors), headers)
            return
        path, path_session = identity.split_path(scope["path"])
        key_id = None if identity.is_open(path, scope, headers) else self._keys.check(headers)
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


def _refused_fields(config: Config, keys: identity.Keys) -> frozenset[str]:
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


_BACKLOG = 2048
#: Longer than the usual idle limits of clients and load balancers, so that those close first.
_KEEP_ALIVE_SECONDS = 75
#: How long streams may continue after SIGTERM.
GRACE_SECONDS = 20


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError where the address is in use or not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    sock.set_inheritable(True)
    return sock


def address(sock: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def server(config: Config) -> uvicorn.Server:
    """The worker's server; start it with `serve(sockets=[…])`."""
    return uvicorn.Server(
        uvicorn.Config(
            GatewayApp(config),
            http="httptools",
            loop="uvloop",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
    )


def run(config: Config, descriptor: int | None) -> int:
    """Serves until SIGTERM; returns the exit status.

    `descriptor`: the file descriptor of the supervisor's socket; None: the configured address is listened on.
    """
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    if descriptor is not None:
        sock = socket.socket(fileno=descriptor)
    else:
        sock = listen(config.gateway.host, config.gateway.port)
        logger.info("gateway listens on %s", address(sock))
    ready = server(config)
    gc.collect()
    gc.freeze()  # what was imported lives as long as the worker: the collector need not scan it
    ready.run(sockets=[sock])
    return 0
