"""What went wrong with a call, from LiteLLM's exceptions to a vote's status. Imported after litellm."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import httpx
import openai
from litellm import exceptions

from learner.llm.refused import is_spent, wait

CONTEXT_OVERFLOW = "context_overflow"

#: Everything that LiteLLM raises for a call that did not work.
CALL_ERRORS = (openai.OpenAIError, exceptions.BudgetExceededError)

_TOO_LONG = re.compile(
    r"context[ _-]?(length|window)|maximum context|too many (input )?tokens|(prompt|input) is too long", re.I
)
_NO_COMPLETION = re.compile(
    r"invalid response|no 'choices'|received response|expecting (value|property)", re.I
)


@dataclass(frozen=True, slots=True)
class CallFault:
    status: str  # timeout | unreachable | bad_reply | context_overflow | http_<status>
    retry_after: str | None
    message: str  # may quote the request: for decisions, never for a log

    @property
    def permanent(self) -> bool:
        """The next call would fail the same way: key, permission, model or account."""
        return self.status in ("http_401", "http_402", "http_403", "http_404")

    @property
    def of_channel(self) -> bool:
        """It says something about the other side, not about this prompt."""
        return self.status in ("timeout", "unreachable", "bad_reply") or self.status.startswith("http_5")


def fault(error: Exception) -> CallFault:
    """Sorts an exception of CALL_ERRORS."""
    message = str(error)
    headers, body = _reply(error)
    return CallFault(_status(error, message, body), wait(headers, body), message)


def _status(error: Exception, message: str, body: str) -> str:
    code = getattr(error, "status_code", None)
    if isinstance(error, exceptions.BudgetExceededError) or is_spent(code, body):
        return "http_402"
    if isinstance(error, openai.APITimeoutError):
        return "timeout"
    below = next((cause for cause in _causes(error) if isinstance(cause, httpx.HTTPError)), None)
    if isinstance(below, httpx.TransportError):
        return "unreachable"  # LiteLLM calls it a 500
    if below is None and (code == 500 or _NO_COMPLETION.search(message)):
        return "bad_reply"  # no server answered 500: LiteLLM could not read the reply
    if isinstance(error, exceptions.ContextWindowExceededError) or (
        code == 400 and _TOO_LONG.search(message)
    ):
        return CONTEXT_OVERFLOW
    return f"http_{code}" if isinstance(code, int) and code >= 400 else "bad_reply"


def _reply(error: Exception) -> tuple[Mapping[str, str], str]:
    """Headers and text of the reply itself. LiteLLM's own exceptions often have neither, but what caused
    them has."""
    responses = [getattr(cause, "response", None) for cause in (error, *_causes(error))]
    known = [response for response in responses if isinstance(response, httpx.Response)]
    headers = [response.headers for response in known if response.headers]
    texts = [text for response in known if (text := _text(response))]
    return (headers[-1] if headers else {}), (texts[-1] if texts else "")


def _text(response: httpx.Response) -> str:
    try:
        return response.text
    except httpx.StreamError:  # it was never read
        return ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause = error.__cause__ or error.__context__
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
