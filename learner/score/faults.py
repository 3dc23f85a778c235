"""What went wrong with a call, from LiteLLM's exceptions to a vote's status. Imported after litellm."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import openai
from litellm import exceptions

CONTEXT_OVERFLOW = "context_overflow"

#: Everything that LiteLLM raises for a call that did not work.
CALL_ERRORS = (openai.OpenAIError, exceptions.BudgetExceededError)

_SPENT = re.compile(
    r"insufficient[_ ]quota|budget (has been )?exceeded|exceeded (your|the) .{0,20}(quota|budget)", re.I
)
_TOO_LONG = re.compile(
    r"context[ _-]?(length|window)|maximum context|too many (input )?tokens|(prompt|input) is too long", re.I
)
_NO_COMPLETION = re.compile(
    r"invalid response|no 'choices'|received response|expecting (value|property)", re.I
)


@dataclass(frozen=True, slots=True)
class Fault:
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


def fault(error: Exception) -> Fault:
    """Sorts an exception of CALL_ERRORS."""
    message = str(error)
    response = getattr(error, "response", None)
    headers = getattr(response, "headers", None) or getattr(error, "headers", None) or {}
    return Fault(_status(error, message), headers.get("retry-after"), message)


def _status(error: Exception, message: str) -> str:
    if isinstance(error, exceptions.BudgetExceededError) or _SPENT.search(message):
        return "http_402"
    if isinstance(error, openai.APITimeoutError):
        return "timeout"
    below = next((cause for cause in _causes(error) if isinstance(cause, httpx.HTTPError)), None)
    if isinstance(below, httpx.TransportError):
        return "unreachable"  # LiteLLM calls it a 500
    code = getattr(error, "status_code", None)
    if below is None and (code == 500 or _NO_COMPLETION.search(message)):
        return "bad_reply"  # nobody answered 500: LiteLLM could not read the reply
    if isinstance(error, exceptions.ContextWindowExceededError) or (
        code == 400 and _TOO_LONG.search(message)
    ):
        return CONTEXT_OVERFLOW
    return f"http_{code}" if isinstance(code, int) and code >= 400 else "bad_reply"


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause = error.__cause__ or error.__context__
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
