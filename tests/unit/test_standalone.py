"""Benches, demo and tests hear nothing that the environment says about settings."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dukou.local.demo import __main__ as demo
from dukou.settings.environment import changes_settings, stand_alone, without_settings
from dukou.settings.keys import settings
from dukou.settings.load import OTHER_VARIABLES, load

ROOT = Path(__file__).resolve().parents[2]
HARMLESS = {"PATH": "/bin", "HOME": "/home/me", "DUKOU_TEST_STATE": "/kept", "HF_HUB_OFFLINE": "1"}
HOSTILE = {
    "DUKOU_STATE_DIR": "/srv/dukou",
    "DUKOU_CONFIG": "/srv/dukou/config.toml",
    "DUKOU_GATEWAY_PORT": "1",
    "DUKOU_KEYS": "k",
    "DATABASE_URL": "postgresql://real/dukou",
    "TAOTOKEN_API_KEY": "sk-1",
    "PGHOSTADDR": "192.0.2.1",
}


@pytest.mark.parametrize("setting", settings().values(), ids=lambda setting: setting.key)
def test_every_variable_that_can_change_a_setting_is_known(setting):
    references = re.findall(r"\$\{(\w+)", json.dumps(setting.default))
    assert all(changes_settings(name) for name in (setting.variable, *references))


def test_the_other_variables_of_dukous_are_known_but_for_the_tests_own():
    assert {name for name in OTHER_VARIABLES if not changes_settings(name)} == {"DUKOU_TEST_STATE"}


def test_what_changes_no_setting_stays():
    assert without_settings(HARMLESS | HOSTILE) == HARMLESS


def test_a_process_forgets_and_is_told_what():
    environ = HARMLESS | HOSTILE
    assert stand_alone(environ) == HOSTILE
    assert environ == HARMLESS
    assert stand_alone(environ) == {}


def test_the_tests_themselves_hear_nothing():
    assert [name for name in os.environ if changes_settings(name)] == []


def test_whatever_a_bench_loads_or_starts_hears_nothing_and_software_is_found_where_the_user_has_it(tmp_path):
    code = (
        "import bench, json, os, subprocess, sys\n"
        "from dukou.settings.load import load\n"
        "child = [sys.executable, '-c', 'import json, os; print(json.dumps(dict(os.environ)))']\n"
        "theirs = json.loads(subprocess.run(child, capture_output=True, check=True).stdout)\n"
        "print(json.dumps([str(bench.installed().root), str(load().config.state_dir), theirs]))"
    )
    hostile = {name: value for name, value in HOSTILE.items() if name != "DUKOU_CONFIG"}
    environ = {"PYTHONPATH": str(ROOT), **hostile}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
    )
    users, benchs, theirs = json.loads(ran.stdout)
    assert (users, benchs) == (HOSTILE["DUKOU_STATE_DIR"], str(tmp_path / ".dukou"))
    assert not HOSTILE.keys() & theirs.keys()


def test_the_demos_parts_have_its_settings_and_its_state_whatever_the_environment_says(tmp_path, monkeypatch):
    for name, value in HOSTILE.items():
        monkeypatch.setenv(name, value)
    loaded = load(environ=demo.prepare(tmp_path))
    assert loaded.config.state_dir == tmp_path / "demo"
    assert loaded.config.database.url.get_secret_value() == ""
    assert (loaded.config.gateway.port, loaded.config.judge.kind) == (18080, "rules")
    assert [one.setting for one in loaded.from_environment] == ["state_dir"]
