"""The line that start says of what a model recommends."""

import json

import pytest

from dukou.local.engine.recommends import choice, line, told
from dukou.settings.model import Config


def config(**engine):
    return Config.model_validate({"engine": engine})


@pytest.mark.parametrize(
    ("values", "cost"),
    [
        ({"temperature": 0.6, "top_p": 0.95, "top_k": 20}, 'dropped unless batch.truncated = "train"'),
        ({"temperature": 0.7, "repetition_penalty": 1.05}, "penalised samples, which cannot be trained"),
        ({"temperature": 0}, "greedy samples, which cannot be trained"),
        ({"temperature": 0.7}, "samples at its temperature, which are trained"),
    ],
)
def test_the_line_says_what_is_recommended_what_is_set_and_what_each_choice_costs(values, cost):
    for chosen in ("model", "openai"):
        said = line(chosen, values)
        assert said.startswith(f'sampling: "{chosen}" is set.')
        assert all(f"{name} {value:g}" in said for name, value in values.items())
        assert cost in said
        assert '"openai" gives samples at temperature 1' in said
        assert "\n" not in said


def test_where_nothing_is_recommended_there_is_nothing_to_choose():
    assert line("model", {}) == line("openai", {})
    assert "temperature 1" in line("model", {})


def test_extra_arguments_win_as_they_do_for_the_engine():
    assert choice(config()) == "model"
    assert choice(config(sampling_defaults="openai")) == "openai"
    assert choice(config(extra_args=["--sampling-defaults", "openai"])) == "openai"
    assert choice(config(sampling_defaults="openai", extra_args=["--sampling-defaults=model"])) == "model"
    assert choice(config(extra_args=["--sampling-defaults"])) == "model"


def test_it_is_said_of_the_model_that_is_served(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.6}))
    assert "recommends temperature 0.6" in told(config(model_path=str(tmp_path)))
    assert "is not known" in told(config(model_path=str(tmp_path / "none")))
