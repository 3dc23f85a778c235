"""The one way to outside models: LiteLLM, quiet, uncached, without its own retries, every attempt billed.

A few blocking calls at once, on daemon threads: a hanging judge does not hold up the end of a process.
"""

import functools
import logging
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dukou.store.calls import Call
from learner.llm.limits import Access, Clock, Gate, Pace, misconfigured, refusal

log = logging.getLogger(__name__)

#: May be refused by a model; then it is left out of every later call.
_OPTIONAL = ("temperature", "response_format", "max_tokens")
_REFUSES_PARAMETER = re.compile(
    r"(un|not |n't )support|unrecogni[sz]ed|unknown|unexpected|extra (inputs|fields)|not (permitted|allowed)",
    re.I,
)
_NO_CACHE = {"no-cache": True, "no-store": True}


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a question. `text`: the final message only, without thinking."""

    status: str  # ok, or the fault
    text: str | None
    cut_off: bool  # the model ran out of output tokens
    calls: tuple[Call, ...]  # every attempt, paid or failed


class Channel:
    """Asks one model, at most `access.concurrency` at a time, from any thread."""

    def __init__(self, access: Access, *, clock: Clock, headers: dict[str, str] | None = None) -> None:
        self._access = access
        self._headers = headers or {}
        self._gate = Gate(clock, access.section)
        self._pace = Pace(access.section, access.requests_per_minute, access.tokens_per_minute, clock)
        self._slots = threading.BoundedSemaphore(access.concurrency)
        self._refused_parameters: frozenset[str] = frozenset()

    def closed(self) -> str | None:
        """Why no call can be made now, in a sentence; None where one can."""
        return misconfigured(self._access) or self._gate.closed() or self._pace.full()

    def ask(self, messages: list[dict[str, str]], max_tokens: int, response_format: Any) -> CallResult | None:
        """One question; None where the channel is closed and nothing was sent."""
        if misconfigured(self._access):
            return None
        with self._slots, self._gate.passage() as closed:
            entered = None if closed else self._pace.enter(_estimate(messages))
            if entered is None:
                return None
            result = self._ask(messages, max_tokens, response_format)
            used = [(call.prompt_tokens or 0) + (call.completion_tokens or 0) for call in result.calls]
            self._pace.adjust(entered, sum(used) or entered.tokens)
            return result

    def _ask(self, messages: list[dict[str, str]], max_tokens: int, response_format: Any) -> CallResult:
        quiet_litellm()  # before anything else imports LiteLLM
        from learner.llm.faults import CALL_ERRORS, fault

        calls: list[Call] = []
        while True:
            parameters = self._parameters(max_tokens, response_format)
            began = time.monotonic()
            try:
                response = self._complete(messages, parameters)
            except CALL_ERRORS as error:
                found = fault(error)
                if _was_sent(error):
                    calls.append(self._call(found.status, time.monotonic() - began))
                if self._drop(found.message, found.status, parameters):
                    continue
                self._tell_gate(found)
                return CallResult(found.status, None, False, tuple(calls))
            self._gate.answered()
            return self._result(response, time.monotonic() - began, calls)

    def _complete(self, messages: list[dict[str, str]], parameters: dict[str, Any]) -> Any:
        access = self._access
        return quiet_litellm().completion(
            model=access.model,
            messages=messages,
            api_base=access.api_base,
            api_key=access.key(),
            timeout=access.timeout,
            num_retries=0,
            max_retries=0,
            caching=False,
            cache=_NO_CACHE,
            extra_headers=self._headers or None,
            **parameters,
        )

    def _parameters(self, max_tokens: int, response_format: Any) -> dict[str, Any]:
        wanted = {
            "temperature": self._access.temperature,
            "response_format": response_format if self._speaks_schema() else None,
            "max_tokens": max_tokens,
        }
        kept = {k: v for k, v in wanted.items() if v is not None and k not in self._refused_parameters}
        return kept if "max_tokens" in kept else {**kept, "max_completion_tokens": max_tokens}

    def _speaks_schema(self) -> bool:
        if self._access.structured != "auto":
            return self._access.structured == "always"
        return bool(quiet_litellm().supports_response_schema(model=self._access.model))

    def _drop(self, message: str, status: str, parameters: dict[str, Any]) -> bool:
        """Whether the error was about an optional parameter, which is left out from now on."""
        if status not in ("http_400", "http_422") or not _REFUSES_PARAMETER.search(message):
            return False
        named = frozenset(name for name in _OPTIONAL if name in parameters and name in message)
        for name in sorted(named - self._refused_parameters):
            log.warning(
                "%s.model %s does not take %s: it is left out from now on",
                self._access.section,
                self._access.model,
                name,
            )
        self._refused_parameters |= named
        return bool(named)

    def _tell_gate(self, found: Any) -> None:
        if found.permanent:
            self._gate.refused(refusal(self._access, found.status))
        elif found.status == "http_429":
            self._gate.rate_limited(found.retry_after)
        elif found.of_channel:
            self._gate.failed(found.status)
        else:
            self._gate.answered()

    def _result(self, response: Any, seconds: float, calls: list[Call]) -> CallResult:
        choice = response.choices[0] if response.choices else None
        text = choice.message.content if choice else None
        usage: Any = getattr(response, "usage", None)
        counted = usage is not None and bool(usage.prompt_tokens)  # 0 is LiteLLM's word for unknown
        tokens = (usage.prompt_tokens, usage.completion_tokens) if counted else (None, None)
        listed = getattr(response, "_hidden_params", {}).get("response_cost")
        cost = self._price(tokens[0], tokens[1], listed)
        known = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "cost_usd": cost}
        calls.append(self._call("ok", seconds, **known))
        cut_off = choice is not None and choice.finish_reason == "length"
        return CallResult("ok", text if isinstance(text, str) else None, cut_off, tuple(calls))

    def _price(self, prompt: int | None, completion: int | None, listed: float | None) -> float | None:
        """US dollars by the prices in the settings, else as LiteLLM has it; None where neither knows."""
        of_prompt, of_output = self._access.usd_per_million
        if not (of_prompt or of_output):
            return listed
        if prompt is None or completion is None:
            return None
        return (prompt * of_prompt + completion * of_output) / 1e6

    def _call(self, outcome: str, seconds: float, **known: Any) -> Call:
        return Call(self._access.section, self._access.model, outcome, seconds, **known)


@functools.cache
def quiet_litellm() -> Any:
    """LiteLLM without telemetry, caches, callbacks, log lines or a look at the network."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import litellm

        # At their debug level these write prompts, and LiteLLM's own lines may quote an answer.
        for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy", "openai", "httpx", "httpcore"):
            level = logging.CRITICAL if name.startswith("LiteLLM") else logging.WARNING
            logging.getLogger(name).setLevel(level)
        # Half of it is imported by the first call: this one, which goes nowhere.
        litellm.completion(model="openai/none", api_key="none", messages=[], mock_response="")
    # Servers add what LiteLLM's types do not know (SGLang: metadata); the warning would quote the reply.
    warnings.filterwarnings("ignore", "Pydantic serializer warnings", UserWarning)
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.turn_off_message_logging = True
    litellm.cache = None
    litellm.callbacks = []
    litellm.success_callback = []
    litellm.failure_callback = []
    return litellm


def _estimate(messages: list[dict[str, str]]) -> int:
    """Tokens of a question, roughly, until the answer tells: four characters each."""
    return sum(len(message["content"]) for message in messages) // 4


def _was_sent(error: Exception) -> bool:
    """Whether a request left the machine; LiteLLM refuses some parameters by itself."""
    return type(error).__name__ != "UnsupportedParamsError"


T = TypeVar("T")


def in_parallel(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Runs every task and returns the results in order; an exception is raised after all have ended."""
    if len(tasks) == 1:
        return [tasks[0]()]
    results: dict[int, T] = {}
    errors: dict[int, BaseException] = {}

    def run(n: int) -> None:
        try:
            results[n] = tasks[n]()
        except BaseException as error:  # carried to the caller's thread
            errors[n] = error

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return [results[n] for n in range(len(tasks))]
