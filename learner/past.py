"""`learner score --since …` and `learner calibrate`: commands on the history."""

import argparse
import json
import logging
import sys
from dataclasses import asdict
from datetime import UTC, datetime

from sqlalchemy import Engine

from dukou.settings.model import Config
from dukou.store import database, sessions
from dukou.store.sessions import Window
from learner.score import calibration
from learner.score.history import History
from learner.score.scorer import choose_judge
from learner.stop import Stop


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
