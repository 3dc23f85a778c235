import tomllib

import pytest

from dukou.settings.keys import settings
from dukou.settings.load import ConfigError, load
from dukou.settings.openclaw import KEYS, SECTIONS

SKELETON = """
[slime]
rollout_batch_size = 12
rollout_fn = "openclaw_rollout.generate_rollout_openclaw"
disable_rollout_global_dataset = true
num_rollout_workers = 2
rollout_timeout_sec = 900

[slime.rollout_worker]
queue_poll_interval = 0.05
stall_warn_interval = 20
resume_on_start = true

[openclaw]
mode = "combine"
api_host = "0.0.0.0"
api_port = 8090
session_max_turns = 8

[openclaw.sglang]
engine_host = "10.0.0.7"
engine_port = 30001
model_path = "/models/qwen"
gpu_ids = [4, 5]

[openclaw.prm]
enable = true
api_base = "https://taotoken.net/api"
api_key = "${TAOTOKEN_API_KEY}"
model = "gpt-5"
timeout_sec = 45

[openclaw.teacher]
enable = true
api_base = "https://taotoken.net/api"
api_key = "${TAOTOKEN_API_KEY}"
model = "gpt-5"

[openclaw.at_least_one]
enable = true
"""
ENVIRON = {"TAOTOKEN_API_KEY": "sk-very-secret", "DUKOU_KEYS": "k"}


@pytest.fixture
def load_text(tmp_path):
    def load_text(text, environ=ENVIRON):
        (tmp_path / "config.toml").write_text(text)
        return load(tmp_path / "config.toml", environ)

    return load_text


def problems(load_text, text, environ=ENVIRON) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load_text(text, environ)
    return caught.value.problems


def test_the_skeleton_takes_effect(load_text):
    config = load_text(SKELETON).config
    assert (config.batch.rollout_batch_size, config.batch.rollout_timeout_sec) == (12, 900)
    assert (config.batch.poll_interval, config.batch.stall_warn_interval) == (0.05, 20)
    assert (config.gateway.host, config.gateway.port, config.gateway.workers) == ("0.0.0.0", 8090, 2)
    assert config.session.max_turns == 8
    assert (config.engine.urls, config.engine.model_path) == (["http://10.0.0.7:30001"], "/models/qwen")
    judge = config.judge
    assert (judge.kind, judge.api_base, judge.model) == ("llm", "https://taotoken.net/api", "openai/gpt-5")
    assert (judge.api_key.get_secret_value(), judge.timeout_sec) == ("sk-very-secret", 45)


def test_what_takes_no_effect_is_answered_by_a_warning(load_text):
    warned = [warning.partition(":")[0] for warning in load_text(SKELETON).warnings]
    assert warned == [key.theirs for key in KEYS if key.ours is None]


def test_every_key_of_the_skeleton_is_in_the_table_and_the_reverse():
    def names(table, prefix=""):
        for name, value in table.items():
            yield from names(value, f"{prefix}{name}.") if isinstance(value, dict) else [prefix + name]

    assert set(names(tomllib.loads(SKELETON))) == {key.theirs for key in KEYS}


def test_the_table_only_leads_to_keys_that_there_are():
    assert {key.ours for key in KEYS if key.ours} <= settings().keys()
    assert all(key.answer for key in KEYS if key.ours is None)
    assert {key.theirs.partition(".")[0] for key in KEYS} == set(SECTIONS)


@pytest.mark.parametrize("mode", ["rl", "opd", "combine"])
@pytest.mark.parametrize("before", ["", "openclaw-"])
def test_the_mode_is_the_losss(load_text, before, mode):
    assert load_text(f'openclaw.mode = "{before}{mode}"').config.loss.mode == mode


def test_a_judge_that_is_off_leaves_the_offline_rules(load_text):
    assert load_text("openclaw.prm.enable = false").config.judge.kind == "rules"


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ('engine_host = "h"', "http://h:30000"),
        ("engine_port = 7", "http://127.0.0.1:7"),
        ('engine_host = "${HOST}"\nengine_port = "${PORT:-9}"', "http://from-env:9"),
    ],
)
def test_host_and_port_are_one_address(load_text, text, url):
    assert load_text("[openclaw.sglang]\n" + text, {"HOST": "from-env"}).config.engine.urls == [url]


@pytest.mark.parametrize("model", ["gpt-5", "openai/gpt-5"])
def test_the_judge_is_named_as_litellm_names_it(load_text, model):
    assert load_text(f'openclaw.prm.model = "{model}"').config.judge.model == "openai/gpt-5"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "slime.rollout_batch_sise = 1",
            "slime.rollout_batch_sise: no such key; did you mean slime.rollout_batch_size?",
        ),
        ("openclaw.prm.api_kee = 1", "openclaw.prm.api_kee: no such key; did you mean openclaw.prm.api_key?"),
        ("openclaw.techer.model = 1", "[openclaw.techer]: no such table; did you mean openclaw.teacher?"),
        ("slime = 1", "slime: must be a table: write [slime] above its keys"),
        ("slime.rollout_batch_size = 0", "slime.rollout_batch_size = 0: must be more than 0 ("),
        ('openclaw.mode = "ppo"', 'openclaw.mode = "ppo": must be rl, opd or combine'),
        ("openclaw.prm.enable = 1", "openclaw.prm.enable = 1: must be true or false"),
        ("openclaw.prm.model = 1", "openclaw.prm.model = 1: must be text in quotes ("),
        (
            'openclaw.sglang.engine_host = "http://h"',
            'openclaw.sglang.engine_host = ["http://http://h:30000"]: must be one',
        ),
        ('openclaw.prm.api_key = "${NONE}"', "openclaw.prm.api_key: NONE is not set in the environment"),
    ],
)
def test_a_wrong_key_or_value_is_blamed_by_their_name(load_text, text, said):
    (problem,) = problems(load_text, text)
    assert problem.startswith(said)


@pytest.mark.parametrize(
    "text",
    [
        "slime.rollout_batch_size = 8\nbatch.rollout_batch_size = 8",
        'openclaw.sglang.engine_port = 1\nengine.urls = ["http://h:1"]',
        'openclaw.prm.enable = true\njudge.kind = "llm"',
    ],
)
def test_the_same_setting_both_ways_is_an_error(load_text, text):
    (problem,) = problems(load_text, text)
    assert "set the same thing: keep " in problem


def test_the_environment_wins_over_their_keys_too(load_text):
    assert load_text("openclaw.api_port = 1", {"DUKOU_GATEWAY_PORT": "2"}).config.gateway.port == 2


def test_their_sections_and_ours_mix(load_text):
    config = load_text("slime.rollout_batch_size = 8\nbatch.min_size = 2").config
    assert (config.batch.rollout_batch_size, config.batch.min_size) == (8, 2)


def test_no_warning_holds_a_secret(load_text):
    text = 'openclaw.teacher.api_key = "sk-very-secret"'
    assert "sk-very-secret" not in "".join(load_text(text).warnings)
