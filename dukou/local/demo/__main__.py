"""`make demo`: the whole loop on one machine, with scripted users, ending in a table, a plot and JSON.

Nothing is arranged for the learner: the users are ordinary openai clients that say in words what they think,
the judge reads those words, and every figure at the end is read back from Postgres or asked of the engine.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from dukou.errors import reports_errors
from dukou.local.demo import report, users, waiting, wish
from dukou.local.demo.report import under_base
from dukou.local.engine.start import model_path
from dukou.local.stack import Stack
from dukou.settings.environment import stand_alone
from dukou.settings.load import load_config
from dukou.settings.model import Config
from dukou.settings.paths import StatePaths
from dukou.store import database, embedded

SETTINGS = Path(__file__).with_name("settings.toml")
SETTLE_SECONDS = 20.0  # the newest version meets some users too
SERVE_SECONDS = 60.0
DRAIN_SECONDS = 60.0
START_SECONDS = 90.0  # that the engine usually takes on two cores

LINE = waiting.Line()

Asked = tuple[str, str]  # question, answer


def say(line: str) -> None:
    LINE.say(line)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--steps", type=int, default=18, help="optimizer steps to make (default %(default)s)")
    parser.add_argument("--users", type=int, default=8, help="users who talk at once (default %(default)s)")
    parser.add_argument(
        "--seconds", type=int, default=660, help="longest time for the talk (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def prepare(state: Path) -> dict[str, str]:
    """A demo state folder begun anew, sharing the installed software; returns the parts' environment.

    What this process's environment says about settings is forgotten: it is meant for a real Dukou.
    """
    stand_alone()
    demo = state / "demo"
    if demo.exists():
        say(f"forgetting the last demo's data in {demo}")
        embedded.stop(demo)
        shutil.rmtree(demo)
    demo.mkdir(parents=True)
    for shared in ("engine", "models"):
        (demo / shared).symlink_to(state / shared)
    return {**os.environ, "DUKOU_CONFIG": str(SETTINGS), "DUKOU_STATE_DIR": str(demo)}


def wait_until_serving(config: Config, seconds: float) -> None:
    """Raises TimeoutError when the gateway is not ready in time, saying why not."""
    url = f"http://{config.gateway.host}:{config.gateway.port}/readyz"
    began, why = time.monotonic(), "no answer"
    while (elapsed := time.monotonic() - began) < seconds:
        LINE.wait("the engine", waiting.beyond(elapsed, START_SECONDS))
        try:
            reply = httpx.get(url, timeout=5)
            if reply.status_code == httpx.codes.OK:
                return
            why = "; ".join(reply.json().get("reasons", []))
        except httpx.TransportError as error:
            why = repr(error)
        time.sleep(0.5)
    logs = StatePaths.for_config(config).logs
    raise TimeoutError(f"the gateway was not ready after {seconds:.0f} s: {why} (logs: {logs})")


def talk(base_url: str, model: str, db: Engine, options: argparse.Namespace, tally: users.Tally) -> None:
    """Lets the crowd talk until enough steps were published, or time is up."""
    crowd = users.Crowd(base_url, model, options.users, options.seed, tally)
    crowd.start()
    begun = time.monotonic()
    last_published: float | None = None
    try:
        while (now := time.monotonic()) - begun < options.seconds:
            time.sleep(1)
            seen = progress(db)
            if seen is None:
                continue
            met, n = tally.recent(48)
            LINE.wait(
                f"{options.steps} versions",
                waiting.left(seen.version, options.steps, now - begun, options.seconds),
                f"{seen.version} by now, {seen.turns} turns, wish met {met}/{n}",
            )
            if seen.version >= options.steps:
                last_published = last_published or now
                if now - last_published > SETTLE_SECONDS:
                    return
    finally:
        crowd.stop()


def progress(db: Engine) -> report.Progress | None:
    """None while Postgres is away: the stack starts it again."""
    try:
        return report.progress(db)
    except OperationalError:
        return None


def wait_until_served(db: Engine) -> None:
    """Until an engine serves the live version. Raises TimeoutError."""
    end = time.monotonic() + SERVE_SECONDS
    while time.monotonic() < end:
        try:
            if report.is_served(db):
                return
        except OperationalError:
            pass  # the stack starts Postgres again
        LINE.wait("the last version to be served", waiting.minutes(end - time.monotonic()))
        time.sleep(0.5)
    raise TimeoutError(f"no engine served the live version within {SERVE_SECONDS:.0f} s")


def wait_until_drained(db: Engine, answers: int) -> None:
    """Until every answer that the users got is a row. Raises TimeoutError naming how many are missing."""
    end = time.monotonic() + DRAIN_SECONDS
    while time.monotonic() < end:
        seen = progress(db)
        if seen is not None and seen.turns >= answers:
            return
        LINE.wait("the last turns in Postgres", waiting.minutes(end - time.monotonic()))
        time.sleep(0.5)
    raise TimeoutError(f"the users got {answers} answers, but Postgres has {seen.turns if seen else 'gone'}")


def engine_version(url: str) -> str:
    """What the engine itself says that it serves."""
    return str(httpx.get(f"{url}/model_info", timeout=10).json().get("weight_version"))


def conclude(db: Engine, config: Config, tally: users.Tally, before: list[Asked], after: list[Asked]) -> None:
    """Prints table and held-out figures, draws the plot, and prints the JSON as the last line of stdout."""
    paths = StatePaths.for_config(config)
    found = report.read(db)
    plotted = paths.root / "preference.png"
    report.plot(found, plotted)
    base = model_path(config)
    held_out = [
        report.rate([wish.is_met(a, t) for q, a in asked if (t := wish.topic_of(q))])
        for asked in (before, after)
    ]
    LINE.say("computing how likely the base model finds the held-out answers")
    perplexity = [under_base(base, asked) for asked in (before, after)]
    print(report.table(found))
    print()
    print(f"asked while training   first third {found.first}   last third {found.last}")
    print(f"held-out, greedy       version 0   {held_out[0]}   last version {held_out[1]}")
    print(
        f"perplexity of the held-out answers under the base model: {perplexity[0]:.2f} -> {perplexity[1]:.2f}"
    )
    print(f"the engine itself says that it serves version {engine_version(config.engine.urls[0])}")
    print(f"plot: {plotted}")
    for (question, first), (_, last) in list(zip(before, after, strict=False))[:3]:
        print(f"  {question}\n    version 0: {first!r}\n    last:      {last!r}")
    print(json.dumps(summary(found, tally, held_out, perplexity)))


def summary(
    found: report.Report, tally: users.Tally, held_out: list[report.Rate], perplexity: list[float]
) -> dict[str, Any]:
    first, last = found.first, found.last
    return {
        "versions": found.versions,
        "turns": found.turns,
        "samples": found.samples,
        "failed": tally.failed,
        "preference": {
            "first": round(first.share, 3),
            "last": round(last.share, 3),
            "n_first": first.n,
            "n_last": last.n,
            "first_interval": [round(x, 3) for x in first.interval()],
            "last_interval": [round(x, 3) for x in last.interval()],
        },
        "held_out": {
            "first": round(held_out[0].share, 3),
            "last": round(held_out[1].share, 3),
            "n_first": held_out[0].n,
            "n_last": held_out[1].n,
        },
        "perplexity_ratio": round(perplexity[1] / perplexity[0], 3),
    }


@reports_errors
def main() -> int:
    options = arguments()
    environ = prepare(StatePaths.for_config(load_config()).root.resolve())
    config = load_config(environ=environ)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    stack = Stack(config, environ, say)
    tally = users.Tally(say=say)
    base_url, model = f"http://{config.gateway.host}:{config.gateway.port}/v1", config.engine.served_name
    try:
        stack.start()
        with stack.watched():
            wait_until_serving(config, 400)
            db = database.engine(config)
            before = users.ask_held_out(base_url, model, tally, LINE)
            talk(base_url, model, db, options, tally)
            stack.retire("learner")  # from here on no version comes: what is shown is of one moment
            wait_until_served(db)
            after = users.ask_held_out(base_url, model, tally, LINE)
            wait_until_drained(db, tally.answers)
            conclude(db, config, tally, before, after)
    finally:
        stack.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
