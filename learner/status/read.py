"""`learner status`: reads, prints, and changes nothing but that the embedded Postgres runs afterwards."""

import sys
from dataclasses import replace
from threading import Event

from sqlalchemy import Engine

from dukou.settings.load import Loaded
from dukou.settings.model import Config
from dukou.store import database
from dukou.store.calls import Caps
from dukou.store.funnel import snapshot, totals
from dukou.store.postgres_errors import POSTGRES_ERRORS, is_schema_missing, line_of
from learner.status import report
from learner.status.facts import StatusFacts, StatusSettings
from learner.status.report import StatusReport, caps_of
from learner.stop import Clock, SystemClock

WATCH_SECONDS = 2.0
NO_CAPS = Caps()


def show(loaded: Loaded, *, as_json: bool, watch: bool) -> int:
    """Prints the report, with `watch` again and again; the exit status is 0 whatever it says."""
    try:
        return _show(loaded, as_json, watch, SystemClock())
    except KeyboardInterrupt:
        return 0


def _show(loaded: Loaded, as_json: bool, watch: bool, clock: Clock) -> int:
    never = Event()
    while True:
        report = replace(read(loaded.config), from_environment=loaded.from_environment)
        if watch and not as_json and sys.stdout.isatty():
            sys.stdout.write("\x1b[H\x1b[2J")  # the screen's upper left, and nothing on it
        print(report.json() if as_json else report.text(), flush=True)
        if not watch:
            return 0
        clock.wait(never, WATCH_SECONDS)


def read(config: Config) -> StatusReport:
    """What can be known now; without Postgres, why not."""
    settings = settings_of(config)
    try:
        engine = database.engine(config)
    except POSTGRES_ERRORS as error:
        return StatusReport(config.policy.name, StatusFacts(settings, trouble=line_of(error)))
    try:
        return read_from(engine, config.policy.name, settings, caps_of(config.judge))
    finally:
        engine.dispose()


def read_from(engine: Engine, policy: str, settings: StatusSettings, caps: Caps = NO_CAPS) -> StatusReport:
    """One consistent look through a connection of this engine."""
    try:
        database.check(engine)
        with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
            facts = StatusFacts(settings, snapshot(connection, policy))
            return StatusReport(policy, facts, totals(connection), report.look(connection, caps))
    except POSTGRES_ERRORS as error:
        return StatusReport(
            policy, StatusFacts(settings, trouble=line_of(error), schema_missing=is_schema_missing(error))
        )


def settings_of(config: Config) -> StatusSettings:
    """What the sentence needs of the configuration."""
    return StatusSettings(
        batch_size=config.batch.rollout_batch_size,
        min_size=config.batch.min_size,
        timeout=config.batch.rollout_timeout_sec,
        idle_seconds=config.session.idle_seconds,
        dry_run=config.trainer.dry_run,
        guard=config.guard,
        gateway=f"http://{config.gateway.host}:{config.gateway.port}/v1/chat/completions",
    )
