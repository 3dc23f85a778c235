"""A real SGLang scores the tokens that it sampled itself, as a teacher at T = 1; and so does the trainer."""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import AutoTokenizer

from dukou.local.engine.__main__ import say
from dukou.local.engine.models import CHAT_MODEL
from dukou.local.engine.start import start, stop
from dukou.settings.paths import StatePaths
from learner.hints.choose import effect, with_hint
from learner.hints.teacher_engine import TeacherEngine, TeacherEngineError
from learner.hints.template import Conversation, Ids, Render, enhanced, renderer
from learner.train import model
from tests.acceptance.conftest import configured

pytestmark = pytest.mark.slow

TURNS = 100
TOKENS = 24
#: bfloat16: two runs of the same tokens differ by 0.04 nats on average, 0.18 at the 99th percentile.
MEAN, WORST = 0.06, 0.8

Message = dict[str, str]


class School:
    """An engine, its model's tokenizer, and the teacher."""

    def __init__(self, url: str, model: Path) -> None:
        self.url = url
        self.teacher = TeacherEngine(url)
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.render: Render = renderer(model)

    def turn(self, messages: list[Message], seed: int) -> tuple[Ids, Ids, npt.NDArray[np.float32]]:
        """Prompt ids, response ids and the log-probabilities recorded while sampling at T = 1."""
        body = {
            "model": "policy",
            "messages": messages,
            "temperature": 1.0,
            "max_tokens": TOKENS,
            "seed": seed,
        }
        body |= {"return_token_ids": True, "return_meta_info": True, "logprobs": True}
        choice = httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=120).json()["choices"][0]
        entries = choice["meta_info"]["output_token_logprobs"]
        ids = np.array([entry[1] for entry in entries], np.int32)
        return (
            np.array(choice["prompt_token_ids"], np.int32),
            ids,
            np.array([e[0] for e in entries], np.float32),
        )


@pytest.fixture(scope="module")
def school(installed: StatePaths, tmp_path_factory: pytest.TempPathFactory) -> Iterator[School]:
    config = configured(installed, tmp_path_factory.mktemp("teacher-state"), model=CHAT_MODEL)
    process = start(config, say)
    try:
        made = School(config.engine.urls[0], Path(config.engine.model_path))
        yield made
        made.teacher.close()
    finally:
        stop(process)


def topics() -> Iterator[list[Message]]:
    for place in (
        "a river",
        "a ferry",
        "bread",
        "the moon",
        "a bicycle",
        "tea",
        "chess",
        "snow",
        "a library",
        "rice",
    ):
        for question in ("What is {}?", "Explain {} to me.", "Tell me about {}.", "Why do people like {}?"):
            yield [{"role": "user", "content": question.format(place)}]


def test_stored_tokens_have_the_recorded_log_probabilities_position_by_position(school: School) -> None:
    """J16."""
    school.teacher.verify(lambda text: school.tokenizer.encode(text, add_special_tokens=False))
    asked = [*topics()] * 3
    with ThreadPoolExecutor(8) as pool:
        turns = list(pool.map(school.turn, asked[:TURNS], range(TURNS)))
    assert all(np.array_equal(school.render(m, None, {}), t[0]) for m, t in zip(asked, turns, strict=False))
    differences = np.concatenate(
        [np.abs(school.teacher.logprobs(prompt.tolist(), answer) - lp) for prompt, answer, lp in turns]
    )
    shifted = np.concatenate([np.abs(np.diff(lp)) for _, _, lp in turns])
    report = {
        "turns": len(turns),
        "tokens": differences.size,
        "mean": round(float(differences.mean()), 4),
        "p99": round(float(np.quantile(differences, 0.99)), 4),
        "largest": round(float(differences.max()), 4),
        "off_by_one_would_be": round(float(shifted.mean()), 4),
    }
    print(json.dumps(report), file=sys.stderr)
    assert len(turns) == TURNS
    assert differences.mean() < MEAN < shifted.mean()
    assert differences.max() < WORST


def test_the_trainer_differs_from_the_engine_by_rounding_alone(school: School, installed: StatePaths) -> None:
    """G12: the distribution, since a mean of zero shows little."""
    asked = [*topics()] * 5
    with ThreadPoolExecutor(8) as pool:
        turns = list(pool.map(school.turn, asked, range(len(asked))))
    policy = model.load(installed.models.resolve() / CHAT_MODEL, torch.device("cpu"))
    logs = np.concatenate(
        [
            np.array(model.all_logprobs(policy, [*prompt, *answer])[-len(answer) :]) - recorded
            for prompt, answer, recorded in turns
        ]
    )
    report = {
        "turns": len(turns),
        "tokens": logs.size,
        "mean": round(float(logs.mean()), 4),
        "sd": round(float(logs.std()), 4),
        "p99": round(float(np.quantile(np.abs(logs), 0.99)), 4),
        "share outside 0.9 to 1.1": round(float(((logs < np.log(0.9)) | (logs > np.log(1.1))).mean()), 4),
    }
    print(json.dumps(report), file=sys.stderr)
    assert len(turns) == 2 * TURNS
    assert abs(report["mean"]) < 0.01
    assert report["sd"] < 0.06
    assert report["p99"] < 0.3
    assert report["share outside 0.9 to 1.1"] < 0.1


def test_a_good_hint_raises_the_corrected_part_and_moves_more_than_an_idle_one(school: School) -> None:
    messages = [{"role": "user", "content": "Which animal shall I draw? Answer in one short sentence."}]
    answer = np.array(
        school.tokenizer.encode("You should draw a giraffe.", add_special_tokens=False), np.int32
    )
    corrected = answer.tolist().index(school.tokenizer.encode(" giraffe", add_special_tokens=False)[0])
    prompt = school.render(messages, None, {})
    untold = school.teacher.logprobs(prompt.tolist(), answer)

    def told(hint: str) -> npt.NDArray[np.float32]:
        hinted = with_hint(messages, hint)
        assert hinted is not None
        ids = enhanced(school.render, Conversation(messages), hinted, prompt)
        return school.teacher.logprobs(ids.tolist(), answer)

    good, idle = told("The user wants to hear of a giraffe."), told("Be careful with your answer here.")
    print(json.dumps({"untold": untold.tolist(), "told": good.tolist()}), file=sys.stderr)
    assert good[corrected] > untold[corrected] + 1
    good_effect, idle_effect = effect(good, untold), effect(idle, untold)
    assert good_effect is not None
    assert idle_effect is not None
    assert good_effect > idle_effect


def test_an_engine_with_another_tokenizer_is_refused(school: School) -> None:
    """J16."""
    with pytest.raises(TeacherEngineError, match="another tokenizer"):
        school.teacher.verify(lambda text: [ord(letter) for letter in text])


def test_an_engine_that_nobody_asks_is_idle(school: School) -> None:
    assert school.teacher.is_idle()
