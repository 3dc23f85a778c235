import logging
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dukou.settings.environment import sentence
from dukou.settings.keys import settings, shown
from dukou.settings.learning import JudgeSettings
from dukou.settings.load import OTHER_VARIABLES, ConfigError, from_mapping, load, load_config

SECRET = "sk-very-secret"
DIGEST = "sha256:" + "0f" * 32


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, text: str, name: str = "config.toml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def problems(table, environ=None) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        from_mapping(table, environ)
    assert SECRET not in str(caught.value)
    return caught.value.problems


# Where settings come from


def test_without_a_file_everything_has_its_default(folder):
    config = load_config(environ={})
    assert config.batch.rollout_batch_size == 16
    assert config.database.url.get_secret_value() == ""
    assert config.gateway.keys == []
    assert config.state_dir == folder / ".dukou"


def test_the_file_is_the_argument_then_the_variable_then_the_current_folder(folder):
    named = write(folder, "gateway.port = 1", "named.toml")
    pointed = write(folder, "gateway.port = 2", "pointed.toml")
    write(folder, "gateway.port = 3")
    environ = {"DUKOU_CONFIG": str(pointed)}
    assert load_config(named, environ).gateway.port == 1
    assert load_config(environ=environ).gateway.port == 2
    assert load_config(environ={"DUKOU_CONFIG": ""}).gateway.port == 3


def test_the_environment_wins_over_the_file_which_wins_over_the_default(folder):
    write(folder, "[gateway]\nport = 1\nworkers = 2")
    gateway = load_config(environ={"DUKOU_GATEWAY_PORT": "5"}).gateway
    assert (gateway.port, gateway.workers, gateway.idle_timeout) == (5, 2, 600)


def test_each_setting_that_the_environment_sets_is_named_with_its_variable_and_no_value(folder):
    write(folder, 'state_dir = "mine"\n[engine]\napi_key = "${ENGINE_KEY}"\nserved_name = "${NAME:-m}"')
    environ = {
        "DUKOU_STATE_DIR": "theirs",
        "DATABASE_URL": f"postgresql://u:{SECRET}@h/d",
        "ENGINE_KEY": SECRET,
        "DUKOU_JUDGE_API_KEY": SECRET,
        "DUKOU_KEYS": f"{SECRET},b",
        "TAOTOKEN_API_KEY": "",
    }
    said = sentence(load(environ=environ).from_environment)
    assert said == (
        "the environment sets: state_dir (DUKOU_STATE_DIR), database.url (DATABASE_URL), "
        "gateway.keys (DUKOU_KEYS), engine.api_key (ENGINE_KEY), judge.api_key (DUKOU_JUDGE_API_KEY)"
    )


def test_where_the_environment_sets_nothing_nothing_is_said(folder):
    write(folder, 'state_dir = "mine"')
    assert sentence(load(environ={"PATH": "/bin", "DATABASE_URL": ""}).from_environment) is None


def test_overrides_are_read_by_the_type_of_their_field():
    config = from_mapping(
        {},
        {
            "DUKOU_GATEWAY_SPOOL_FSYNC": "always",
            "DUKOU_TRAINER_DRY_RUN": "true",
            "DUKOU_TRAINER_LEARNING_RATE": "5e-4",
            "DUKOU_TRAINER_BETAS": "0.8,0.9",
            "DUKOU_ENGINE_URLS": "http://a:1, http://b:2/",
            "DUKOU_ENGINE_EXTRA_ARGS": '["--json={1,2}"]',
            "DUKOU_STATE_DIR": "/var/dukou",
            "DUKOU_JUDGE_MODEL": "a$${b}",
        },
    )
    assert config.gateway.spool.fsync == "always"
    assert config.trainer.dry_run is True
    assert config.trainer.learning_rate == 5e-4
    assert config.trainer.betas == (0.8, 0.9)
    assert config.engine.urls == ["http://a:1", "http://b:2"]
    assert config.engine.extra_args == ["--json={1,2}"]
    assert config.state_dir == Path("/var/dukou")
    assert config.judge.model == "a$${b}", "an override is taken as it is"


def test_no_two_settings_share_a_variable():
    variables = [setting.variable for setting in settings().values()]
    assert len({*variables, *OTHER_VARIABLES}) == len(variables) + len(OTHER_VARIABLES)


def test_defaults_are_expanded_too():
    config = from_mapping({}, {"DATABASE_URL": "postgresql://h/d", "TAOTOKEN_API_KEY": SECRET})
    assert config.database.url.get_secret_value() == "postgresql://h/d"
    assert config.judge.api_key.get_secret_value() == SECRET


def test_keys_are_plain_or_digests_and_come_from_one_variable():
    config = from_mapping({}, {"DUKOU_KEYS": f"alpha, {DIGEST},"})
    assert [key.get_secret_value() for key in config.gateway.keys] == ["alpha", DIGEST]
    as_text = from_mapping({"gateway": {"keys": "${K}"}}, {"K": "a,b"})
    assert [key.get_secret_value() for key in as_text.gateway.keys] == ["a", "b"]


def test_state_dir_is_relative_to_the_folder_of_the_file(folder):
    (folder / "etc").mkdir()
    file = write(folder / "etc", 'state_dir = "state"')
    assert load_config(file, {}).state_dir == folder / "etc" / "state"
    assert load_config(Path("etc/config.toml"), {}).state_dir == folder / "etc" / "state"


def test_state_dir_may_start_at_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    assert from_mapping({"state_dir": "~/dukou"}).state_dir == Path("/home/someone/dukou")


# What is wrong is said


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (
            {"batch": {"rollout_batch_sise": 8}},
            "batch.rollout_batch_sise: no such key; did you mean batch.rollout_batch_size?",
        ),
        (
            {"rollout_batch_size": 8},
            "rollout_batch_size: no such key; did you mean batch.rollout_batch_size?",
        ),
        ({"traner": {"seed": 1}}, "[traner]: no such table; did you mean trainer?"),
        ({"gateway": 3}, "gateway: must be a table: write [gateway] above its keys"),
        (
            {"session": {"zzzzzzzz": 3}},
            "session.zzzzzzzz: no such key; known are session.max_turns, session.idle_seconds",
        ),
        ({"gateway": {"port": 70000}}, "gateway.port = 70000: must be at most 65535 ("),
        ({"gateway": {"port": "80a"}}, 'gateway.port = "80a": must be a whole number ('),
        ({"gateway": {"workers": True}}, "gateway.workers = true: must be a number ("),
        ({"batch": {"min_size": 1.5}}, "batch.min_size = 1.5: must be a whole number ("),
        ({"loss": {"kl": float("inf")}}, "loss.kl = inf: must be a finite number ("),
        ({"judge": {"kind": "gpt"}}, "judge.kind = \"gpt\": must be 'auto', 'llm' or 'rules' ("),
        ({"judge": {"votes": 1}}, "judge.quorum = 2: must be at most judge.votes, which is 1 ("),
        ({"judge": {"model": 3}}, "judge.model = 3: must be text in quotes ("),
        ({"judge": {"model": ""}}, 'judge.model = "": must not be empty ('),
        ({"trainer": {"betas": [0.9]}}, "trainer.betas = [0.9]: must have 2 items ("),
        (
            {"trainer": {"betas": [0.9, 1]}},
            "trainer.betas = [0.9, 1]: must be two numbers of at least 0 and less",
        ),
        ({"trainer": {"lora_targets": []}}, "trainer.lora_targets = []: must have at least 1 items ("),
        ({"trainer": {"dry_run": "perhaps"}}, 'trainer.dry_run = "perhaps": must be true or false ('),
        ({"policy": {"name": "../x"}}, 'policy.name = "../x": must match '),
        ({"engine": {"urls": []}}, "engine.urls = []: must be one or more addresses"),
        (
            {"engine": {"urls": ["localhost:30000"]}},
            'engine.urls = ["localhost:30000"]: must be one or more addresses',
        ),
        (
            {"trainer": {"method": "full"}, "publish": {"form": "adapter"}},
            'publish: form = "adapter" needs trainer.method',
        ),
        (
            {"trainer": {"lora_targets": ["q_proj"]}, "publish": {"form": "adapter"}},
            "publish: engines fuse q_proj with v_proj: name both in trainer.lora_targets",
        ),
        (
            {"publish": {"trial_share": 0.1}},
            'publish: trial_share needs form = "adapter"',
        ),
    ],
)
def test_a_problem_names_the_key_the_value_and_what_is_right(table, said):
    (problem,) = problems(table)
    assert problem.startswith(said)


def test_a_problem_tells_the_meaning_and_the_default():
    (problem,) = problems({"judge": {"votes": 0, "quorum": 1}})
    assert problem == "judge.votes = 0: must be more than 0 (how often each turn is judged (m); default 3)"


def test_an_unset_variable_is_named_with_its_key():
    (problem,) = problems({"judge": {"api_key": "${NOT_THERE}"}})
    assert problem.startswith(
        "judge.api_key: NOT_THERE is not set in the environment; export it, or write ${NOT_THERE:-"
    )


def test_an_override_is_blamed_by_its_own_name():
    assert problems({}, {"DUKOU_BATCH_MIN_SIZE": "few"})[0].startswith(
        'DUKOU_BATCH_MIN_SIZE = "few": must be a whole'
    )


def test_an_unknown_variable_with_the_prefix_is_an_error():
    assert problems({}, {"DUKOU_GATEWAY_PROT": SECRET}) == (
        "DUKOU_GATEWAY_PROT: no such variable; did you mean DUKOU_GATEWAY_PORT?",
    )


def test_all_problems_are_in_one_message_that_names_the_file(folder):
    file = write(folder, '[gateway]\nprot = 1\nport = -1\n[judge]\napi_key = "${NOT_THERE}"\nkind = "x"')
    with pytest.raises(ConfigError) as caught:
        load(file, {"DUKOU_X": ""})
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{file}: 5 problems"
    keys = sorted(line.strip().split(":")[0].split(" ")[0] for line in lines[1:])
    assert keys == ["DUKOU_X", "gateway.port", "gateway.prot", "judge.api_key", "judge.kind"]


@pytest.mark.parametrize(("text", "said"), [(b"a = ", "is not TOML: "), (b'a = "\xff"', "is not UTF-8 text")])
def test_a_file_that_cannot_be_parsed_is_named(folder, text, said):
    file = folder / "config.toml"
    file.write_bytes(text)
    with pytest.raises(ConfigError) as caught:
        load(file, {})
    assert str(caught.value).startswith(f"{file}: {said}")


def test_a_named_file_that_is_missing_is_an_error(folder):
    with pytest.raises(ConfigError, match=r"gone\.toml: cannot be read: No such file"):
        load(environ={"DUKOU_CONFIG": str(folder / "gone.toml")})


# Secrets


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"database": {"url": f"mysql://u:{SECRET}@h/d"}}, "database.url"),
        ({"gateway": {"keys": [f"sha256:{SECRET}"]}}, "gateway.keys"),
        ({"gateway": {"keys": [[SECRET]]}}, "gateway.keys"),
        ({"judge": {"api_key": [SECRET]}}, "judge.api_key"),
        ({"judge": {"api_kee": SECRET}}, "judge.api_kee"),
        ({"engine": {"urls": [f"ftp://u:{SECRET}@h"]}}, "engine.urls"),
        ({"gateway": {"port": "${TOKEN}"}}, "gateway.port"),
    ],
)
def test_a_secret_is_in_no_message(table, key):
    assert problems(table, {"TOKEN": SECRET})[0].startswith(key)


def test_a_secret_is_in_no_repr():
    environ = {
        "TAOTOKEN_API_KEY": SECRET,
        "DUKOU_KEYS": SECRET,
        "DATABASE_URL": f"postgresql://u:{SECRET}@h/d",
    }
    config = from_mapping({"engine": {"api_key": SECRET}}, environ)
    assert SECRET not in repr(config) + str(config) + config.model_dump_json()


def test_the_model_itself_hides_a_refused_input():
    with pytest.raises(ValidationError) as caught:
        JudgeSettings.model_validate({"api_key": [SECRET], "api_kee": SECRET})
    assert SECRET not in str(caught.value)


def test_the_refused_input_is_not_behind_the_error():
    with pytest.raises(ConfigError) as caught:
        from_mapping({"judge": {"api_key": [SECRET]}})
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_what_stands_before_the_host_is_not_shown():
    assert shown(["http://u:p@h:1"]) == '["http://***@h:1"]'
    assert shown("a@b") == '"a@b"'
    assert shown("x" * 200) == '"' + "x" * 76 + "..."


# Other promises


@pytest.mark.parametrize(
    ("host", "keys", "open_"),
    [
        ("127.0.0.1", "", False),
        ("127.9.9.9", "", False),
        ("::1", "", False),
        ("localhost", "", False),
        ("0.0.0.0", "", True),
        ("::", "", True),
        ("10.0.0.1", "", True),
        ("gateway.internal", "", True),
        ("0.0.0.0", "k", False),
    ],
)
def test_a_gateway_that_everybody_can_use_brings_a_warning(folder, host, keys, open_):
    file = write(folder, f'gateway.host = "{host}"')
    warnings = load(file, {"DUKOU_KEYS": keys}).warnings
    assert [w.startswith(f'gateway.host = "{host}" without gateway.keys') for w in warnings] == [True] * open_


def test_load_config_logs_the_warnings(folder, caplog):
    file = write(folder, 'gateway.host = "0.0.0.0"')
    with caplog.at_level(logging.WARNING):
        load_config(file, {})
    assert caplog.messages == list(load(file, {}).warnings) != []


@given(st.text(st.characters(exclude_characters="$", exclude_categories=["Cs"]), min_size=1))
def test_text_without_a_dollar_sign_arrives_unchanged(text):
    assert from_mapping({"judge": {"model": text}}).judge.model == text


def test_settings_import_neither_database_nor_learner():
    code = "import sys, dukou.settings.load; print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True
    )
    assert "pydantic" in loaded.stdout.split(), loaded.stderr
    heavy = {"sqlalchemy", "psycopg", "torch", "numpy", "transformers", "litellm", "httpx", "fastapi"}
    assert heavy.isdisjoint(loaded.stdout.split())
