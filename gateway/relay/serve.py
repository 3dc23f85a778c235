"""One worker: a uvicorn server on its own listening socket, or on its supervisor's."""

import gc
import logging
import socket

import uvicorn

from dukou.settings.model import Config
from gateway.relay.app import GatewayApp

logger = logging.getLogger(__name__)

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
