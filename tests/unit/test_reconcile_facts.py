"""What an engine was started with: asked once per life, again while a part is unknown."""

from pathlib import Path

import httpx
import pytest

from gateway.reconcile.decide import Route
from gateway.reconcile.engine_facts import EngineFactsPoller
from gateway.reconcile.sglang import Control, ControlError, Health
from gateway.routes import EngineFacts
from tests.fakes.server_info import URL, ServerInfoEngine

READY = Route("ready")
OPENAI = {"sampling_defaults": "openai", "tool_call_parser": "qwen", "grammar_backend": "xgrammar"}
QWEN = {"parser": "qwen", "grammar": "xgrammar"}
UNKNOWN = EngineFacts()


def test_one_request_in_each_of_its_lives_tells_all_facts() -> None:
    engine, poller = ServerInfoEngine(**OPENAI), EngineFactsPoller(lambda: 0.0)
    known = EngineFacts(sampling_defaults={}, tool_calling=QWEN)
    with engine.control() as control:
        for _ in range(3):
            poller.look(control, Health.READY, "sglang")
        for health in (Health.PAUSED, Health.SILENT):
            poller.look(control, health, "sglang")
        assert (engine.asked, poller.facts(URL)) == (1, known)
        for health in (Health.STARTING, Health.DEAD):
            poller.look(control, health, "sglang")
            assert poller.facts(URL) == UNKNOWN
            poller.look(control, Health.READY, "sglang")
            assert poller.facts(URL) == known
        assert engine.asked == 3


def test_an_engine_that_could_not_answer_says_why_and_is_asked_again() -> None:
    now = [0.0]
    engine, poller = ServerInfoEngine(**OPENAI), EngineFactsPoller(lambda: now[0])
    engine.status = 503
    with engine.control() as control:
        for now[0] in (0.0, 9.0):
            poller.look(control, Health.READY, "sglang")
        assert (engine.asked, poller.facts(URL)) == (1, UNKNOWN)
        assert "/server_info answered 503" in str(poller.with_reason(URL, READY).reason)
        assert poller.with_reason(URL, Route("ready", "slow")).reason == "slow"
        assert poller.with_reason(URL, Route("dead")).reason is None
        engine.status, now[0] = 200, 10.0
        poller.look(control, Health.READY, "sglang")
    assert (engine.asked, poller.facts(URL)) == (2, EngineFacts({}, None, QWEN))
    assert poller.with_reason(URL, READY) == READY


def test_what_was_said_in_this_life_stays_known_when_a_later_question_fails() -> None:
    now = [0.0]
    engine, poller = ServerInfoEngine(tool_call_parser="qwen"), EngineFactsPoller(lambda: now[0])
    with engine.control() as control:
        poller.look(control, Health.READY, "sglang")
        known = poller.facts(URL)
        assert "--sampling-defaults" in str(poller.with_reason(URL, READY).reason)
        engine.status, now[0] = 500, 10.0
        poller.look(control, Health.READY, "sglang")
    assert engine.asked == 2
    assert known == poller.facts(URL) == EngineFacts(tool_calling={"parser": "qwen", "grammar": None})
    assert "/server_info answered 500" in str(poller.with_reason(URL, READY).reason)


def test_the_vocabulary_is_known_before_and_after_the_engine_is_asked(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 7}')
    engine, poller = ServerInfoEngine(**OPENAI), EngineFactsPoller()
    poller.vocabularies.saw(URL, tmp_path)
    assert poller.facts(URL) == EngineFacts(vocab_size=7)
    with engine.control() as control:
        poller.look(control, Health.READY, "sglang")
    assert poller.facts(URL) == EngineFacts({}, 7, QWEN)


@pytest.mark.parametrize("dialect", ["plain", "vllm", None])
def test_another_server_than_sglang_is_not_asked_and_stays_unknown(dialect: str | None) -> None:
    engine, poller = ServerInfoEngine(), EngineFactsPoller()
    with engine.control() as control:
        poller.look(control, Health.READY, dialect)
    assert (engine.asked, poller.facts(URL), poller.with_reason(URL, READY)) == (0, UNKNOWN, READY)


def test_an_engine_that_is_gone_is_unknown() -> None:
    def gone(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    poller = EngineFactsPoller()
    with Control(URL, transport=httpx.MockTransport(gone)) as control:
        poller.look(control, Health.READY, "sglang")
        with pytest.raises(ControlError):
            control.server_info()
    assert poller.facts(URL) == UNKNOWN
