"""One arm with one seed, through the whole system: engine, gateway, judge by rule, learner, reconciler."""

import os
import platform
import shutil
import time
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, text

from bench.evidence.hinting import Hinting
from bench.evidence.intervals import by_cluster
from bench.evidence.modes import HINTS, MODES
from dukou.local.demo import __main__ as demo
from dukou.local.demo import users, wish
from dukou.local.demo.report import under_base
from dukou.local.engine.start import model_path
from dukou.local.stack import Stack
from dukou.settings.load import load_config
from dukou.settings.model import Config
from dukou.store import database, embedded, policies
from learner.batch import close
from learner.hints.choose import FRAME

STEPS, SECONDS = 16, 900.0
USERS = 16
#: Forms that nobody asks while training: with the twenty held-out topics a hundred prompts.
FORMS = (
    *wish.HELD_OUT_QUESTIONS,
    "Please say something about {topic}.",
    "I would like to learn about {topic}.",
    "Why do people like {topic}?",
)

#: The same with a hint in each: what a teacher can bring a model to.
HINTED = tuple(f"{form}{FRAME.format(hint=HINTS[n % len(HINTS)])}" for n, form in enumerate(FORMS))

SETTINGS = Path(__file__).with_name("settings.toml")

CURVE = text("""
    select number, version, metrics from steps order by number
""")

Asked = list[tuple[str, str]]


def run(mode: str, seed: int, state: Path) -> dict[str, Any]:
    """The cell's result. Takes minutes, and ports 18081 and 31081."""
    environ = _prepare(state, mode, seed)
    config = load_config(environ=environ)
    stack = Stack(config, environ, demo.say)
    tally = users.Tally(say=demo.say)
    base_url = f"http://{config.gateway.host}:{config.gateway.port}/v1"
    began = time.monotonic()
    try:
        stack.start()
        with stack.watched():
            demo.wait_until_serving(config, 400)
            db = database.engine(config)
            before = _ask(base_url, config, tally)
            hinted = _ask(base_url, config, tally, HINTED) if MODES[mode].hints else []
            trained = _talk(base_url, config, db, tally, mode, seed)
            frozen = _frozen(db, config)
            # The backlog would make more steps than were asked for.
            stack.retire("learner")
            demo.wait_until_served(db)
        curve = _curve(db)
        after = _ask(base_url, config, tally)
        demo.wait_until_drained(db, tally.answers)
        return {
            "mode": mode,
            "seed": seed,
            "hardware": f"{platform.machine()}, {os.cpu_count()} cores, no GPU",
            "seconds": round(time.monotonic() - began),
            "seconds_training": round(trained),
            "failed_requests": tally.failed,
            "frozen": frozen,
            **_judge(config, before, after),
            "hinted": _share(_met(hinted)) if hinted else None,
            "curve": curve,
        }
    finally:
        stack.stop()


def _prepare(state: Path, mode: str, seed: int) -> dict[str, str]:
    folder = state / "bench" / "learning"
    if folder.exists():
        embedded.stop(folder)
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    for shared in ("engine", "models"):
        (folder / shared).symlink_to(state / shared)
    return {
        **os.environ,
        "DUKOU_CONFIG": str(SETTINGS),
        "DUKOU_STATE_DIR": str(folder),
        "DUKOU_GATEWAY_PORT": "18081",
        "DUKOU_ENGINE_URLS": '["http://127.0.0.1:31081"]',
        "DUKOU_TRAINER_SEED": str(seed),
        **MODES[mode].environ,
    }


def _ask(base_url: str, config: Config, tally: users.Tally, forms: tuple[str, ...] = FORMS) -> Asked:
    return users.ask_held_out(base_url, config.engine.served_name, tally, demo.LINE, forms)


def _talk(base_url: str, config: Config, db: Engine, tally: users.Tally, mode: str, seed: int) -> float:
    """Lets the crowd talk until STEPS steps were made, or a guard froze learning; seconds that it took."""
    crowd = users.Crowd(base_url, config.engine.served_name, USERS, seed, tally, MODES[mode].react)
    hinting = Hinting(db, config) if MODES[mode].hints else None
    began = time.monotonic()
    if hinting is not None:
        hinting.start()
    crowd.start()
    try:
        while time.monotonic() - began < SECONDS and _steps(db) < STEPS and _frozen(db, config) is None:
            time.sleep(1)
    finally:
        crowd.stop()
        if hinting is not None:
            hinting.stop()
    return time.monotonic() - began


def _steps(db: Engine) -> int:
    with db.connect() as connection:
        return connection.scalar(text("select count(*) from steps")) or 0


def _frozen(db: Engine, config: Config) -> str | None:
    """Why the learner makes no more steps by itself."""
    with db.connect() as connection:
        policy = policies.get(connection, config.policy.name)
        return None if policy is None else close.why_frozen(connection, policy, config.guard)


def _judge(config: Config, before: Asked, after: Asked) -> dict[str, Any]:
    """Held-out share, its interval clustered by topic, perplexity under the base, and transcripts."""
    base = model_path(config)
    found: dict[str, Any] = {"n": len(after)}
    for name, asked in (("before", before), ("after", after)):
        met = _met(asked)
        found[name] = _share(met)
        found[f"{name}_interval"] = [round(x, 3) for x in by_cluster(met)]
        found[f"{name}_words"] = round(sum(len(a.split()) for _, a in asked) / len(asked), 1)
        found[f"{name}_perplexity"] = round(under_base(base, asked), 3)
    found["after_by_form"] = {form: _share(_met(_of_form(after, form))) for form in FORMS}
    found["perplexity_ratio"] = round(found["after_perplexity"] / found["before_perplexity"], 3)
    # Every ninth, chosen by nobody: all forms come up.
    found["transcripts"] = [[q, a, dict(after).get(q)] for q, a in before[::9]]
    return found


def _met(asked: Asked) -> list[tuple[str, bool]]:
    """Each answer's topic, and whether it is as wished."""
    return [(topic, wish.is_met(a, topic)) for q, a in asked if (topic := wish.topic_of(q))]


def _share(met: list[tuple[str, bool]]) -> float:
    return round(sum(ok for _, ok in met) / len(met), 3)


def _of_form(asked: Asked, form: str) -> Asked:
    questions = {form.format(topic=topic) for topic in wish.HELD_OUT}
    return [(q, a) for q, a in asked if q in questions]


def _curve(db: Engine) -> list[dict[str, Any]]:
    """A point a step, from SQL alone."""
    wanted = {
        "reward/mean": "reward",
        "kl/mean": "kl",
        "entropy": "entropy",
        "completions/mean_length": "length",
        "off_policy/mean": "staleness",
        "teacher/share": "taught",
        "teacher/kl": "teacher_kl",
        "first_ratio/mean": "ratio_mean",
        "first_ratio/p99": "ratio_p99",
        "first_ratio/share": "ratio_share",
        "mismatch_kl/mean": "mismatch_kl",
    }
    with db.connect() as connection:
        rows = connection.execute(CURVE).all()
    return [
        {"step": row.number, **{short: _rounded(row.metrics.get(name)) for name, short in wanted.items()}}
        for row in rows
    ]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
