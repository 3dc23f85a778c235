"""`learner publish --version|--share`, `rollback`, `pin`, `versions`: commands that move the live pointer."""

import argparse
import json
from collections.abc import Callable

from sqlalchemy import Connection

from dukou.settings.model import Config
from dukou.store import database, publishing, watch
from dukou.store.publishing import Pointers
from dukou.store.versions import Version

RECONCILER_FOLLOWS = "the gateway's reconciler brings the engines to it"


def run(config: Config, arguments: argparse.Namespace) -> int:
    """Prints what was done and returns 0.

    Raises:
        DatabaseError: Postgres cannot be used now.
        PublishingError, UnknownVersionError, RefusedVersionError: it cannot be done; nothing was changed.
    """
    engine = database.engine(config)
    try:
        database.check(engine)
        with engine.begin() as connection:
            policy = publishing.find(connection, config.policy.name)
            print(VERBS[arguments.verb](connection, policy.id, arguments, config))
    finally:
        engine.dispose()
    return 0


def _publish(connection: Connection, policy_id: int, arguments: argparse.Namespace, config: Config) -> str:
    if arguments.share is not None:
        version = publishing.try_out(connection, policy_id, arguments.version, arguments.share)
        return f"version {version} is on trial for {arguments.share:.0%} of the sessions"
    version = publishing.publish(connection, policy_id, arguments.version)
    return f"version {version} is live: {RECONCILER_FOLLOWS}"


def _rollback(connection: Connection, policy_id: int, arguments: argparse.Namespace, config: Config) -> str:
    version = publishing.rollback(connection, policy_id, arguments.to, arguments.because)
    return f"version {version} is live again: {RECONCILER_FOLLOWS}, and training goes on from it"


def _pin(connection: Connection, policy_id: int, arguments: argparse.Namespace, config: Config) -> str:
    if arguments.off:
        publishing.unpin(connection, policy_id)
        return "no version is pinned: automatic publishing goes on"
    version = publishing.pin(connection, policy_id, arguments.version)
    return f"version {version} is pinned: nothing automatic replaces it until `learner pin --off`"


def _versions(connection: Connection, policy_id: int, arguments: argparse.Namespace, config: Config) -> str:
    state = publishing.pointers(connection, policy_id)
    found = publishing.tree(connection, policy_id)
    if arguments.json:
        return json.dumps([publishing.as_json(version, state) for version in found])
    lines = [_line(version, state) for version in found]
    waits = watch.why_wait(watch.cache_cost(connection, policy_id, state.live), config.publish.max_cold_share)
    return "\n".join([*lines, f"the next publish waits: {waits}"] if waits else lines)


def _line(version: Version, state: Pointers) -> str:
    parent = "base model" if version.parent is None else f"from {version.parent}"
    marks = [_trial(version, state)] if _trial(version, state) else []
    marks += ["pinned"] if state.pinned and version.version == state.live else []
    marks += [version.reason] if version.reason else []
    line = f"{version.version:>6}  {version.status:<8} {version.form:<8} {parent:<11} {'; '.join(marks)}"
    return line.rstrip()


def _trial(version: Version, state: Pointers) -> str:
    trial = state.trial
    return f"on trial for {trial.share:.0%}" if trial and trial.version == version.version else ""


VERBS: dict[str, Callable[[Connection, int, argparse.Namespace, Config], str]] = {
    "publish": _publish,
    "rollback": _rollback,
    "pin": _pin,
    "versions": _versions,
}
