import tomllib
from pathlib import Path

import pytest

from dukou.settings.docs import pages, render, with_table
from dukou.settings.keys import flatten, settings
from dukou.settings.load import from_mapping

ROOT = Path(__file__).parents[2]


def uncommented() -> dict[str, object]:
    lines = (line[1:] if line[:1] == "#" and line[1:2].isalpha() else line for line in render().splitlines())
    return tomllib.loads("\n".join(lines))


@pytest.mark.parametrize("file", ["config.toml", "docs/configuration.md", "docs/coming-from-openclaw-rl.md"])
def test_a_written_file_is_what_the_model_says(file):
    assert (ROOT / file).read_text() == pages(ROOT)[ROOT / file], "run: python -m dukou.settings.docs"


def test_the_settings_file_holds_every_key_at_its_default():
    values, problems = flatten(uncommented(), settings())
    assert problems == []
    assert values == {key: setting.default for key, setting in settings().items()}


def test_the_settings_file_changes_nothing_with_or_without_its_comments():
    assert from_mapping(uncommented()) == from_mapping(tomllib.loads(render())) == from_mapping({})


@pytest.mark.parametrize("key", settings())
def test_every_key_has_a_description_of_one_line(key):
    description = settings()[key].description
    assert description
    assert "\n" not in description


def test_a_default_holds_a_secret_only_by_reference():
    defaults = [str(setting.default) for setting in settings().values() if setting.secret]
    assert all(default in ("", "[]") or ":-}" in default for default in defaults)


def test_a_page_without_its_marks_is_refused():
    with pytest.raises(ValueError, match="the page lacks"):
        with_table("# Page\n", "| a |\n")
