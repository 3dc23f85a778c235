import pytest

from dukou.settings.model import Config
from learner.score.judge import Rubrics, UnknownRubricError, load
from learner.score.next_state import Case


def case(tenant="default", task="chat"):
    return Case((), "a", None, (), (), tenant, task)


@pytest.fixture
def folder(tmp_path):
    for name in ("strict@1", "tools@2", "default@1"):
        (tmp_path / f"{name}.md").write_text(f"this is {name}")
    return str(tmp_path)


def test_the_first_rule_whose_conditions_all_hold_decides(folder):
    rules = ["tenant:acme,task:tools=tools@2", "tenant:acme=strict@1", "task:tools=tools@2"]
    rubrics = Rubrics("default@1", rules, folder)
    assert rubrics.name_for(case()) == "default@1"
    assert rubrics.name_for(case("acme")) == "strict@1"
    assert rubrics.name_for(case("acme", "tools")) == "tools@2"
    assert rubrics.name_for(case(task="tools")) == "tools@2"
    assert rubrics.text("strict@1") == "this is strict@1"


def test_a_file_of_ones_own_wins_over_a_built_in_one(folder):
    assert load("default@1", folder) == "this is default@1"
    assert load("default@1") != "this is default@1"


def test_a_rubric_that_a_rule_names_must_be_there(folder):
    with pytest.raises(UnknownRubricError, match=r"no rubric 'gone@1'.*strict@1"):
        Rubrics("default@1", ["tenant:acme=gone@1"], folder)


@pytest.mark.parametrize("name", ["../secret@1", "default", "default@x"])
def test_a_name_is_no_path(name, folder):
    with pytest.raises(UnknownRubricError, match="no rubric"):
        load(name, folder)


@pytest.mark.parametrize("rule", ["acme=strict@1", "tenant:acme", "tenant:=x@1", "user:ann=strict@1"])
def test_a_rule_that_cannot_be_read_is_refused_with_the_settings(rule):
    with pytest.raises(ValueError, match="must be rules like"):
        Config.model_validate({"judge": {"rubric_for": [rule]}})
