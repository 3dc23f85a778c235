from pathlib import Path

import pytest

from dukou.settings.load import from_mapping
from dukou.settings.paths import StatePaths

PATHS = StatePaths(Path("/state"))


def test_every_folder_is_where_the_architecture_page_says():
    found = {
        PATHS.venv,
        PATHS.engine_env,
        PATHS.models,
        PATHS.postgres,
        PATHS.spool,
        PATHS.run,
        PATHS.logs,
        PATHS.bench,
    }
    names = {"venv", "engine", "models", "postgres", "spool", "run", "logs", "bench"}
    assert found == {Path("/state") / name for name in names}
    assert PATHS.routes_file == Path("/state/run/routes.json")
    assert PATHS.suspects == Path("/state/run/suspects")


def test_checkpoints_and_versions_are_kept_apart_by_policy():
    assert PATHS.checkpoints("default") == Path("/state/checkpoints/default")
    assert PATHS.versions("default") == Path("/state/versions/default")


@pytest.mark.parametrize("name", ["", ".", "..", "../other", "a/b", "a\\b", "a\0b"])
def test_a_policy_name_cannot_lead_out_of_its_folder(name):
    with pytest.raises(ValueError, match="cannot be a folder's name"):
        PATHS.checkpoints(name)
    with pytest.raises(ValueError, match="cannot be a folder's name"):
        PATHS.versions(name)


def test_the_root_is_the_state_dir_of_the_settings():
    assert StatePaths.for_config(from_mapping({"state_dir": "/var/lib/dukou"})).root == Path("/var/lib/dukou")
