"""Examines once after each start what an engine tells of its tokens: a flag of another dialect is ignored
silently, and a missing parser loses log-probabilities silently.

Two short requests tell: which dialect of capture fields it understands, whether every token of an answer
has its log-probability, and whether a stream gives that of the token that stopped it.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import Any

from gateway.parse.reply import Answer, fold
from gateway.reconcile.decide import Route
from gateway.reconcile.sglang import ControlError
from gateway.relay import capture

#: What is sent of a request's body → status and body of the reply. Raises ControlError where none comes.
Ask = Callable[[bytes], tuple[int, bytes]]

_AGAIN_SECONDS = 30.0  # after which an engine that failed is examined again
_TOKENS = 16
_TURN = "0" * 32
_NO_IDS = "it gives no token ids: its turns are recorded, and cannot be trained"
_NO_PARSER = (
    "its streams lack log-probabilities, the stop token's first of all: start SGLang with --tool-call-parser"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    dialect: str  # sglang | vllm | plain
    complaint: str | None = None  # what its answers lack


#: The same tokens twice. SGLang keeps the slow sampler that a temperature of 0 needs for all requests that
#: run at the time, until it is idle.
_NEARLY_GREEDY = 0.01


def examine(ask: Ask, model: str, dialect: str) -> Verdict:
    """Examines an engine that says to be of `dialect`; one that does not say is asked in vLLM's words.

    Raises:
        ControlError: it could not be asked, or failed.
    """
    dialect = "vllm" if dialect == "plain" else dialect
    question = {"role": "user", "content": "Count."}
    body = {"model": model, "messages": [question], "temperature": _NEARLY_GREEDY}
    status, reply = ask(_request(body | {"max_tokens": _TOKENS}, dialect))
    if status >= 500 or status in (401, 403, 408, 429):
        raise ControlError(f"it answered {status}")
    answer = _answer_of(reply) if status < 400 else None
    if answer is None or answer.response_ids is None:
        return Verdict("plain" if dialect == "vllm" else dialect, _NO_IDS)
    count, given = len(answer.response_ids), len(answer.logprobs or ())
    if count != given:
        return Verdict(
            dialect, f"it gave {given} log-probabilities for {count} tokens: they cannot be trained"
        )
    return Verdict(dialect, _of_stream(ask, body, dialect, answer))


def _of_stream(ask: Ask, body: Mapping[str, Any], dialect: str, known: Answer) -> str | None:
    """A stream that ends at its first token: that token has no text, and all the same a log-probability."""
    assert known.response_ids is not None
    stopping = {"stream": True, "max_tokens": _TOKENS, "stop_token_ids": [known.response_ids[0]]}
    status, reply = ask(_request({**body, **stopping}, dialect))
    if status >= 400:
        return f"it refuses to stream with token ids ({status}): what is streamed cannot be trained"
    answer = _answer_of(reply)
    if answer is None or answer.response_ids is None:
        return "its streams give no token ids: what is streamed cannot be trained"
    whole = len(answer.response_ids) == len(answer.logprobs or ())
    return None if whole else _NO_PARSER


class SelfTests:
    """Examines engines in threads of its own: the reconciler never waits for it."""

    def __init__(
        self,
        executor: Executor,
        asks: Mapping[str, Ask],
        model: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._executor = executor
        self._asks = asks
        self._model = model
        self._clock = clock
        self._begun: dict[str, tuple[Future[Verdict], float]] = {}

    def told(self, url: str, route: Route) -> Route:
        """The route with what is known of its engine; an examination begins where it is ready and unknown."""
        if route.state in ("dead", "starting"):  # it may come back as another
            self._begun.pop(url, None)
        if route.state != "ready":
            return route
        found, at = self._begun.get(url) or self._begin(url, route)
        if not found.done():
            return route
        error = found.exception()
        if error is None:
            verdict = found.result()
            return replace(route, dialect=verdict.dialect, reason=route.reason or verdict.complaint)
        if self._clock() - at >= _AGAIN_SECONDS:
            del self._begun[url]
        return replace(route, reason=route.reason or f"its self-test failed: {error}")

    def _begin(self, url: str, route: Route) -> tuple[Future[Verdict], float]:
        found = self._executor.submit(examine, self._asks[url], self._model, route.dialect or "plain")
        self._begun[url] = found, self._clock()
        return self._begun[url]


def _request(body: Mapping[str, Any], dialect: str) -> bytes:
    return capture.prepare(capture.CHAT, body, _TURN, capture.Recipient(dialect=dialect), capturing=True).body


def _answer_of(reply: bytes) -> Answer | None:
    answers = fold(reply).answers
    return answers[0] if answers else None
