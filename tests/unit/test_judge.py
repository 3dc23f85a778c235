import subprocess
import sys

import pytest

from dukou.settings.model import Config
from learner.llm.limits import misconfigured, of_judge
from learner.score.judge import RulesJudge, UnknownRubricError
from learner.score.llm_judge import LLMJudge
from learner.score.scorer import choose_judge, is_own_endpoint


def config(engine=("http://localhost:30000",), port=8080, **judge):
    return Config.model_validate(
        {"judge": {"api_key": "k"} | judge, "engine": {"urls": list(engine)}, "gateway": {"port": port}}
    )


def test_auto_takes_the_model_where_there_is_a_key_and_the_rules_where_there_is_none():
    judge, sentence = choose_judge(config(kind="auto"))
    assert isinstance(judge, LLMJudge)
    assert sentence == "judge: llm:openai/gpt-5-mini at https://taotoken.net/api, 3 votes, quorum 2"
    judge, sentence = choose_judge(config(kind="auto", api_key=""))
    assert isinstance(judge, RulesJudge)
    assert "rules@1, offline, because judge.api_key is empty" in sentence


def test_rules_are_taken_when_asked_for_even_with_a_key():
    judge, sentence = choose_judge(config(kind="rules"))
    assert isinstance(judge, RulesJudge)
    assert "judge.kind = rules" in sentence


def test_a_model_that_was_asked_for_without_a_key_is_paused_and_says_so():
    judge, sentence = choose_judge(config(kind="llm", api_key=""))
    assert "PAUSED: judge.api_key is empty" in sentence
    assert "TAOTOKEN_API_KEY" in judge.waiting()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("api_base", "${JUDGE_BASE}", "judge.api_base still holds a literal"),
        ("api_key", "${TAOTOKEN_API_KEY}", "judge.api_key still holds a literal"),
        ("api_base", "taotoken.net/api", "must begin with http"),
    ],
)
def test_settings_that_cannot_work_are_named_without_a_call(name, value, words):
    assert words in misconfigured(of_judge(config(**{name: value}).judge))


def test_working_settings_have_nothing_to_complain_about():
    assert misconfigured(of_judge(config().judge)) is None


@pytest.mark.parametrize(
    ("base", "own"),
    [
        ("http://127.0.0.1:8080/v1", True),
        ("http://localhost:8080", True),
        ("http://127.0.0.1:30000/v1", True),
        ("http://[::1]:30000/v1", True),
        ("http://127.0.0.1:30001/v1", False),
        ("https://taotoken.net/api", False),
        ("http://[broken", False),
    ],
)
def test_the_policys_own_endpoint_is_recognised(base, own):
    assert is_own_endpoint(config(api_base=base)) is own


def test_choosing_needs_no_heavy_import():
    code = (
        "import sys, learner.score.scorer; sys.exit(bool({'litellm', 'openai', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_rubric_is_refused_at_the_start():
    with pytest.raises(UnknownRubricError, match="no rubric"):
        choose_judge(config(rubric="mine@1"))
