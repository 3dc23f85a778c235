"""`learner publish --version|--share`, `rollback`, `pin`, `versions`: commands that move the live pointer.

`learner score --since …` and `learner calibrate`: commands on the history.
"""

import argparse
import json
import logging
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime

from sqlalchemy import Connection, Engine

from dukou.settings.model import Config
from dukou.store import database, publishing, sessions, watch
from dukou.store.publishing import Pointers
from dukou.store.sessions import Window
from dukou.store.versions import Version
from learner.score import calibration
from learner.score.history import History
from learner.score.scorer import choose_judge
from learner.stop import Stop

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


def moment(text: str) -> datetime:
    """Parses an ISO date or time, in UTC where it names no zone. Raises ValueError, as argparse expects."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def rescore(config: Config, arguments: argparse.Namespace) -> int:
    """Judges a window of history again. Returns the exit status: 1 where not all of it was judged."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    changed = {"kind": arguments.judge} if arguments.judge else {}
    if arguments.rubric:
        changed |= {"rubric": arguments.rubric, "rubric_for": []}
    asked = config.model_copy(update={"judge": config.judge.model_copy(update=changed)})
    judge, sentence = choose_judge(asked)
    engine = _connected(config)
    print(sentence, file=sys.stderr)
    stop = Stop()
    with stop.listen():
        run = History(engine, judge, Window(arguments.since, arguments.until), lambda: stop.requested)
        report = run.run()
    engine.dispose()
    print(f"{report.claimed} turns judged, {report.scored} scored")
    if report.waiting_because:
        print(report.waiting_because, file=sys.stderr)
    return int(report.waiting_because is not None or stop.requested)


def calibrate(config: Config, arguments: argparse.Namespace) -> int:
    """Prints how far judges agree with feedback and with each other. Returns the exit status."""
    engine = _connected(config)
    with engine.connect() as connection:
        scores = sessions.given_scores(connection, Window(arguments.since, arguments.until))
    engine.dispose()
    found = calibration.calibrate(scores)
    biases = calibration.length_bias(scores)
    if arguments.json:
        body = {"agreement": calibration.as_json(found), "length_bias": [asdict(bias) for bias in biases]}
        print(json.dumps(body, ensure_ascii=False, indent=2))
    else:
        print(calibration.text(found, biases))
    return 0


def _connected(config: Config) -> Engine:
    engine = database.engine(config)
    database.check(engine)
    return engine
