"""What an error reply says of money and of time: is the account spent, and how long is one to wait. Pure.

Providers say "quota" of a full minute as of an empty account, so that only typed fields decide: a code that
means spent, or the status 402. Words decide nothing but how long to wait, and of a 429 nothing else. Some
providers have no code for an empty account and answer 400: of them the sentence counts that begins `message`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

#: `code`, `type`, `status` or `reason` of an error that only money mends.
SPENT = frozenset(
    {
        "insufficient_quota",  # OpenAI
        "billing_hard_limit_reached",
        "billing_not_active",
        "exceeded_current_quota_error",  # Moonshot
        "budget_exceeded",  # LiteLLM's proxy
        "terminal_quota_exhausted",
        "1113",  # Zhipu, Z.ai: overdue (1302 and 1305 are limits of a moment)
        "arrearage",  # DashScope
    }
)
_SPENT_SENTENCES = re.compile(
    r"(?:litellm\.\w+: \w+ - )?(?:your credit balance is too low|insufficient balance"
    r"|budget has been exceeded)",
    re.I,
)
_TYPED = ("code", "type", "status", "reason")
_NUMBER = r"\d{1,9}(?:\.\d{1,9})?"
_UNIT = r"(?:ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hours?|d|days?)"
_SPAN = rf"((?:{_NUMBER}\s?{_UNIT}\s?)+)(?![a-z])"
_ASKED = re.compile(rf"\b(?:try again|retry) (?:in|after) {_SPAN}", re.I)
_PART = re.compile(rf"({_NUMBER})\s?(ms|milli|[smhd])", re.I)
_SECONDS_OF = {"ms": 0.001, "milli": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def is_spent(status: int | None, body: str) -> bool:
    """Whether the account behind a key has no money left. `status` is HTTP's, None where unknown."""
    if status == 402:
        return True
    errors = list(_errors(_parsed(body)))
    if any(_word(error.get(name)) in SPENT for error in errors for name in _TYPED):
        return True
    return status == 400 and any(_SPENT_SENTENCES.match(_message(error)) for error in errors)


def wait(headers: Mapping[str, str], body: str) -> str | None:
    """How long to wait, as a Retry-After header has it (seconds or a date); None where nothing says so."""
    milliseconds = headers.get("retry-after-ms")
    if milliseconds is not None and re.fullmatch(_NUMBER, milliseconds):
        return str(float(milliseconds) / 1_000)
    if headers.get("retry-after"):
        return headers["retry-after"]
    errors = list(_errors(_parsed(body)))
    for error in errors:
        found = error.get("retryDelay", error.get("retry_after"))
        if isinstance(found, int | float) and not isinstance(found, bool):
            return str(float(found))
        if isinstance(found, str) and (seconds := _seconds(found)) is not None:
            return str(seconds)
    asked = _ASKED.search("\n".join(map(_message, errors)) or body)
    seconds = _seconds(asked[1]) if asked else None
    return None if seconds is None else str(seconds)


def _seconds(text: str) -> float | None:
    """Seconds of "26s", "6m0.5s", "174ms", "9 seconds"."""
    parts = _PART.findall(text)
    return sum(float(number) * _SECONDS_OF[unit.casefold()] for number, unit in parts) if parts else None


def _errors(body: Any) -> Iterator[dict[str, Any]]:
    """The objects of a reply that describe an error: itself, its `error`, its details, also in lists."""
    if isinstance(body, list):
        for entry in body:
            yield from _errors(entry)
    elif isinstance(body, dict):
        yield body
        for name in ("error", "errors", "details"):
            yield from _errors(body.get(name))


def _parsed(body: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _message(error: dict[str, Any]) -> str:
    message = error.get("message")
    return message if isinstance(message, str) else ""


def _word(value: object) -> str:
    return str(value).casefold() if isinstance(value, str | int) else ""
