"""One worker: a uvicorn server on a listening socket of its own, or of its supervisor."""

import gc
import logging
import socket

import uvicorn

from gateway.relay.app import GatewayApp
from store.config_model import Config

logger = logging.getLogger(__name__)

_BACKLOG = 2048
#: Longer than the usual idle limits of clients and load balancers, so that they close first.
_KEEP_ALIVE_SECONDS = 75
#: How long streams may go on after SIGTERM.
GRACE_SECONDS = 20


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError where the address is taken or not ours."""
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
    """The server, ready for `serve(sockets=[…])`."""
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
    """Serves until SIGTERM; returns the exit status."""
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    if descriptor is not None:
        sock = socket.socket(fileno=descriptor)
    else:
        sock = listen(config.gateway.host, config.gateway.port)
        logger.info("gateway listens on %s", address(sock))
    ready = server(config)
    gc.collect()
    gc.freeze()  # what was imported lives as long as the worker: the collector need not look at it again
    ready.run(sockets=[sock])
    return 0
