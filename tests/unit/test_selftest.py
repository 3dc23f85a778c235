"""What an engine gives is asked once after each start, in the words of its dialect."""

import json
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from gateway.reconcile.decide import Route
from gateway.reconcile.selftest import SelfTests, Verdict, examine
from gateway.reconcile.sglang import ControlError
from tests.fakes.spooled import chunk, sse

URL = "http://a"


class Fake:
    """An engine in one of its moods; remembers what it was asked."""

    def __init__(self, kind: str, *, status: int = 200, parser: bool = True, speculating: bool = False):
        self.kind, self.status, self.parser, self.speculating = kind, status, parser, speculating
        self.asked: list[dict[str, Any]] = []

    def __call__(self, body: bytes) -> tuple[int, bytes]:
        asked = json.loads(body)
        self.asked.append(asked)
        if self.status != 200:
            return self.status, b'{"error": {"message": "unknown field"}}'
        return 200, self._stream(asked) if asked.get("stream") else self._whole(asked)

    def _whole(self, asked: dict[str, Any]) -> bytes:
        ids = list(range(5, 5 + asked["max_tokens"]))
        given = 1 if self.speculating else len(ids)
        entries = [{"token": "t", "logprob": -0.1}] * given
        choice: dict[str, Any] = {"index": 0, "message": {"content": "x"}, "finish_reason": "length"}
        if self.kind == "sglang" and asked.get("return_meta_info"):
            choice["meta_info"] = {"output_token_logprobs": [[-0.1, token, None] for token in ids[:given]]}
            choice["response_token_ids"] = ids
        if self.kind == "vllm" and asked.get("return_token_ids"):
            choice |= {"token_ids": ids, "logprobs": {"content": entries}}
        return json.dumps({"choices": [choice]}).encode()

    def _stream(self, asked: dict[str, Any]) -> bytes:
        stop = asked["stop_token_ids"]
        entry = {"content": [{"token": "", "logprob": -0.1}]} if self.parser else None
        if self.kind == "vllm":
            return sse(chunk({}, "stop", logprobs=entry, token_ids=stop), "[DONE]")
        ids = {"choices": [], "sglext": {"input_ids": [1], "output_ids": [stop]}}
        return sse(chunk({}, logprobs=entry), chunk({}, "stop"), ids, "[DONE]")


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
def test_a_whole_engine_has_nothing_to_complain_of(kind):
    fake = Fake(kind)
    assert examine(fake, "m", "sglang" if kind == "sglang" else "plain") == Verdict(kind)
    assert [asked.get("stream") for asked in fake.asked] == [None, True]
    assert fake.asked[1]["stop_token_ids"] == [5]


@pytest.mark.parametrize("status", [200, 400, 422])
def test_a_server_that_ignores_or_refuses_the_fields_is_plain_and_serves(status):
    """K11."""
    verdict = examine(Fake("plain", status=status), "m", "plain")
    assert verdict.dialect == "plain"
    assert "no token ids" in str(verdict.complaint)


def test_too_few_logprobs_are_noticed_before_the_first_user_comes():
    """K10."""
    verdict = examine(Fake("sglang", speculating=True), "m", "sglang")
    assert verdict.dialect == "sglang"
    assert "1 log-probabilities for 16 tokens" in str(verdict.complaint)


def test_an_engine_without_a_parser_is_named():
    verdict = examine(Fake("sglang", parser=False), "m", "sglang")
    assert "--tool-call-parser" in str(verdict.complaint)


def test_no_question_is_greedy():
    """The engine would keep its slow sampler for the users beside it."""
    fake = Fake("sglang")
    examine(fake, "m", "sglang")
    assert len(fake.asked) == 2
    assert all(asked["temperature"] > 0 for asked in fake.asked)


@pytest.mark.parametrize("status", [500, 503, 429, 401])
def test_an_engine_that_fails_is_not_judged(status):
    with pytest.raises(ControlError):
        examine(Fake("sglang", status=status), "m", "sglang")


class Later(Executor):
    """Runs what was submitted when the test says so."""

    def __init__(self):
        self.waiting = []

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        self.waiting.append((future, fn, args))
        return future

    def run(self):
        for future, fn, args in self.waiting:
            try:
                future.set_result(fn(*args))
            except ControlError as error:
                future.set_exception(error)
        self.waiting.clear()


READY = Route("ready", version_low=3, version_high=3, dialect="sglang")


def test_an_engine_serves_while_it_is_examined_and_is_examined_again_after_each_start():
    executor, fake = Later(), Fake("sglang", parser=False)
    tests = SelfTests(executor, {URL: fake}, "m", lambda: 0.0)
    assert tests.told(URL, READY) == READY
    executor.run()
    told = tests.told(URL, READY)
    assert (told.state, told.version_low, told.dialect) == ("ready", 3, "sglang")
    assert "--tool-call-parser" in str(told.reason)
    fake.parser = True
    assert tests.told(URL, Route("starting")) == Route("starting")
    tests.told(URL, READY)
    executor.run()
    assert tests.told(URL, READY) == READY


def test_an_examination_that_failed_is_said_and_repeated_later():
    executor, fake, now = Later(), Fake("sglang", status=500), [0.0]
    tests = SelfTests(executor, {URL: fake}, "m", lambda: now[0])
    tests.told(URL, READY)
    executor.run()
    assert "self-test failed" in str(tests.told(URL, READY).reason)
    fake.status, now[0] = 200, 31.0
    tests.told(URL, READY)
    tests.told(URL, READY)
    executor.run()
    assert tests.told(URL, READY) == READY


def test_a_plain_server_that_speaks_vllms_dialect_is_asked_in_it_from_then_on():
    executor = Later()
    tests = SelfTests(executor, {URL: Fake("vllm")}, "m", lambda: 0.0)
    plain = Route("ready", dialect="plain")
    tests.told(URL, plain)
    executor.run()
    assert tests.told(URL, plain).dialect == "vllm"
