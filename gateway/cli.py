"""The command line. Only argparse is imported before the arguments are understood."""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dukou.errors import reports_errors

if TYPE_CHECKING:
    from dukou.settings.model import Config

_VERBS = {
    "serve": "one worker only",
    "drain": "the drainer only: spool → Postgres",
    "reconcile": "the reconciler only: live pointer → engines",
    "aside": "lists records that could not become turns; --again drains them once more",
}


@reports_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a verb; returns the exit status."""
    asked = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells of every look at an engine
    config = _config(asked)
    if asked.verb == "drain":
        from gateway.drain import process as drain

        drain.main(config)
        return 0
    if asked.verb == "aside":
        from gateway.drain import aside

        return aside.show(config, again=asked.again)
    if asked.verb == "reconcile":
        from gateway.reconcile import process as reconcile

        reconcile.main(config)
        return 0
    problem = exposed(config)
    if problem is not None:
        print(problem, file=sys.stderr)
        return 2
    if asked.verb == "serve":
        from gateway.relay import app

        return app.run(config, asked.fd)
    from gateway import supervise

    return supervise.run(config, asked.config)


def exposed(config: "Config") -> str | None:
    """Why this configuration must not listen, with the command that mends it; None where it may."""
    if not config.gateway.open_to_everybody:
        return None
    host = config.gateway.host
    return (
        f"refusing to listen on {host} without keys: whoever reaches the port could use the engine. "
        f"Run: DUKOU_KEYS=$(openssl rand -hex 16) python -m gateway --host {host}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gateway",
        description="Serves users: relay, drainer and reconciler. Without a verb, all of them.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"  {verb:<10} {words}" for verb, words in _VERBS.items()),
    )
    parser.add_argument("verb", nargs="?", choices=list(_VERBS), metavar="|".join(_VERBS))
    parser.add_argument("--config", type=Path, help="default: $DUKOU_CONFIG, else ./config.toml")
    parser.add_argument("--host", help="address to listen on (gateway.host)")
    parser.add_argument("--port", type=int, help="port to listen on, 0 for any (gateway.port)")
    parser.add_argument("--again", action="store_true", help="with aside: drain what is set aside again")
    parser.add_argument("--fd", type=int, help=argparse.SUPPRESS)  # the supervisor's listening socket
    parser.add_argument("--supervised", action="store_true", help=argparse.SUPPRESS)
    return parser


def _config(asked: argparse.Namespace) -> "Config":
    from dukou.settings.environment import sentence
    from dukou.settings.load import load

    loaded = load(asked.config)
    loaded.warn()
    if (said := sentence(loaded.from_environment)) and not asked.supervised:  # its supervisor has said it
        logging.getLogger(__name__).info("%s", said)
    config = loaded.config
    given = {name: getattr(asked, name) for name in ("host", "port") if getattr(asked, name) is not None}
    return config.model_copy(update={"gateway": config.gateway.model_copy(update=given)})
