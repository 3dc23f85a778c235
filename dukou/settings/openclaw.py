"""OpenClaw-RL's settings, translated key by key.

A key either takes effect on ours or is answered with what replaces it; none is silently ignored. The table of
docs/coming-from-openclaw-rl.md is written from KEYS.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dukou.settings.keys import flatten, shown

#: The top-level tables that are OpenClaw-RL's.
SECTIONS = ("slime", "openclaw")

_MODES = ("rl", "opd", "combine")
_NO_TEACHER = (
    "distillation needs no teacher of its own here: the trainer's model is the teacher, under the judge's "
    "hints; a chat model that writes corrected answers goes under [teacher]"
)


class Key(NamedTuple):
    """One key of theirs. `answer` is the warning where nothing of ours takes the value, else a remark."""

    theirs: str
    ours: str | None
    answer: str = ""
    convert: Callable[[object], object] = lambda value: value


@dataclass(frozen=True, slots=True)
class Translation:
    """`given`: our key → (their key, value in our terms)."""

    given: dict[str, tuple[str, object]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def _judge_kind(value: object) -> object:
    match value:
        case True:
            return "llm"
        case False:
            return "rules"
        case _:
            raise ValueError("must be true or false")


def _judge_model(value: object) -> object:
    """LiteLLM wants the channel's kind before the name; theirs is always OpenAI-compatible."""
    return f"openai/{value}" if isinstance(value, str) and not value.startswith("openai/") else value


def _mode(value: object) -> object:
    mode = str(value).removeprefix("openclaw-")
    if mode not in _MODES:
        raise ValueError("must be rl, opd or combine, with or without openclaw- before it")
    return mode


KEYS: tuple[Key, ...] = (
    Key("slime.rollout_batch_size", "batch.rollout_batch_size"),
    Key(
        "slime.rollout_fn",
        None,
        "there is no rollout function to name: the gateway records, and `python -m learner` trains",
    ),
    Key(
        "slime.disable_rollout_global_dataset",
        None,
        "Dukou never generates from a data set: every turn comes from a real request; leave the key out",
    ),
    Key("slime.num_rollout_workers", "gateway.workers"),
    Key(
        "slime.rollout_timeout_sec",
        "batch.rollout_timeout_sec",
        "a partial batch then trains from batch.min_size",
    ),
    Key(
        "slime.rollout_worker.queue_poll_interval",
        "batch.poll_interval",
        "the queue is a table in Postgres: 1 s is plenty",
    ),
    Key("slime.rollout_worker.stall_warn_interval", "batch.stall_warn_interval"),
    Key(
        "slime.rollout_worker.resume_on_start",
        None,
        "Dukou never closes submissions: requests are answered whether or not the learner runs; "
        "to record and score without training set trainer.dry_run = true",
    ),
    Key(
        "openclaw.mode",
        "loss.mode",
        "openclaw- before it is left out; the teacher is the trainer's model under the judge's hints",
        _mode,
    ),
    Key("openclaw.api_host", "gateway.host"),
    Key("openclaw.api_port", "gateway.port"),
    Key("openclaw.session_max_turns", "session.max_turns"),
    Key("openclaw.sglang.engine_host", "engine.urls", "with engine_port: http://<engine_host>:<engine_port>"),
    Key("openclaw.sglang.engine_port", "engine.urls", "with engine_host; 127.0.0.1 where that is missing"),
    Key("openclaw.sglang.model_path", "engine.model_path"),
    Key(
        "openclaw.sglang.gpu_ids",
        None,
        "Dukou places nothing on GPUs: start SGLang with CUDA_VISIBLE_DEVICES; for two of them "
        'engine.extra_args = ["--tp", "2"]',
    ),
    Key("openclaw.prm.enable", "judge.kind", "true: llm; false: rules, which judge offline", _judge_kind),
    Key("openclaw.prm.api_base", "judge.api_base", "used as it is, no path added"),
    Key("openclaw.prm.api_key", "judge.api_key", "keep it in the environment"),
    Key("openclaw.prm.model", "judge.model", "as LiteLLM names it: openai/ is put before it", _judge_model),
    Key("openclaw.prm.timeout_sec", "judge.timeout_sec"),
    Key("openclaw.teacher.enable", None, _NO_TEACHER),
    Key("openclaw.teacher.api_base", None, _NO_TEACHER),
    Key("openclaw.teacher.api_key", None, _NO_TEACHER),
    Key("openclaw.teacher.model", None, _NO_TEACHER),
    Key(
        "openclaw.at_least_one.enable",
        None,
        'a score of 0 is an ordinary sample here, and advantage.kind = "running" gives it a gradient: '
        'nothing has to be unmasked; where zeros are dropped all the same, batch.zeros = "at_least_one"',
    ),
)


def translate(table: Mapping[str, object]) -> Translation:
    """`table` holds their sections as TOML gave them; pure, and nothing in it is expanded."""
    known = {key.theirs: key for key in KEYS}
    values, problems = flatten(table, known)
    found = Translation(problems=problems)
    for name, value in values.items():
        _take(known[name], value, found)
    _join_engine(values, found)
    return found


def _take(key: Key, value: object, found: Translation) -> None:
    try:
        converted = key.convert(value)
    except ValueError as error:
        found.problems.append(f"{key.theirs} = {shown(value)}: {error}")
        return
    if key.ours is not None:
        found.given[key.ours] = (key.theirs, converted)
    else:
        found.warnings.append(f"{key.theirs}: {key.answer.format(value=value)}")


def _join_engine(values: Mapping[str, object], found: Translation) -> None:
    """Their host and port are one address of ours."""
    if "engine.urls" not in found.given:
        return
    host = values.get("openclaw.sglang.engine_host", "127.0.0.1")
    port = values.get("openclaw.sglang.engine_port", 30000)
    name, _ = found.given["engine.urls"]
    found.given["engine.urls"] = (name, [f"http://{host}:{port}"])
