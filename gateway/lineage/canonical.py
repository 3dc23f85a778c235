"""Identity of messages: when two histories are the same conversation, although their bytes differ. Pure.

The rules, all of them:

* role: lower case; `developer` is `system`, `function` is `tool`.
* text: a string, or the text parts of a list joined without a separator. null, "", [] and absent are equal.
  Parts that are not text count by their JSON.
* an assistant's thinking does not count: neither `reasoning` fields nor `<think>…</think>`, also where the
  opening tag was in the prompt or the closing one never came.
* outer whitespace does not count.
* tool calls: name and arguments; arguments are parsed and written anew with sorted keys, 1.0 being 1. Ids of
  calls do not count: clients rename them. The `tool_call_id` of a result does.
* lines of a system message that tell the date or the time do not count: they change from turn to turn.
* every other key of a message does not count.

A history is a chain of digests that begins at the tenant and the key, so that conversations of two keys
never meet: digest[i] = blake2b(digest[i - 1] + message[i]). An exchange is such a chain of two: an answer,
and the message just before it. docs/lineage.md says what both are for.
"""

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any

DIGEST_BYTES = 16

_ROLES = {"developer": "system", "function": "tool"}
_THINKING = re.compile(
    r"\A(?:(?!<think>).)*?</think>|<think>.*?</think>|<think>(?:(?!</think>).)*\Z", re.DOTALL
)
_CLOCK_LINE = re.compile(
    r"^[ \t>*#-]*(?:the )?(?:current|today'?s)\s+(?:local )?(?:date|time)\b[^\n]*$",
    re.IGNORECASE | re.MULTILINE,
)

_compact = json.JSONEncoder(separators=(",", ":")).encode
_compact_sorted = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


@lru_cache(maxsize=4096)
def root(tenant: str, key_id: str | None) -> bytes:
    """The digest that every history of this key begins with."""
    return _digest(json.dumps([tenant, key_id]).encode())


def chain(start: bytes, messages: Iterable[Any]) -> list[bytes]:
    """The digests after each message; [messages] of DIGEST_BYTES each."""
    digests, last = [], start
    for message in messages:
        last = extend(last, message)
        digests.append(last)
    return digests


def extend(digest: bytes, message: Any) -> bytes:
    """The digest of a history with one more message."""
    form = canonical(message if isinstance(message, Mapping) else {"content": message})
    # ASCII escapes: lone surrogates have no UTF-8.
    return _digest(digest + _compact(form).encode("ascii"))


def exchange(start: bytes, before: Any, answer: Any) -> bytes | None:
    """The digest of an answer with the message before it; None where that is nothing or a system message."""
    if not isinstance(before, Mapping) or not isinstance(answer, Mapping):
        return None
    if str(before.get("role")).lower() in ("system", "developer", "assistant"):
        return None
    return extend(extend(start, before), answer)


def canonical(message: Mapping[str, Any]) -> list[Any]:
    """[role, text, other parts, tool calls, tool_call_id], by the rules above."""
    role = str(message.get("role") or "").lower()
    role = _ROLES.get(role, role)
    return [
        role,
        text(message),
        _other_parts(message.get("content")),
        _calls(message),
        _answers(message, role),
    ]


def text(message: Mapping[str, Any]) -> str:
    """The canonical text of a message; "" where it has none."""
    content, role = message.get("content"), str(message.get("role") or "").lower()
    if isinstance(content, list | tuple):
        content = "".join(_part_text(part) or "" for part in content)
    if not isinstance(content, str):
        return ""
    if role == "assistant" and "think>" in content:
        content = _THINKING.sub("", content)
    if role in ("system", "developer") and _may_tell_time(content.lower()):
        content = _CLOCK_LINE.sub("", content)
    return content.strip()


def _may_tell_time(lowered: str) -> bool:
    """Searching for two words costs much less than the pattern, which nearly never matches."""
    return "date" in lowered or "time" in lowered


def _part_text(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    value = part.get("text") if isinstance(part, Mapping) else None
    return value if isinstance(value, str) else None


def _other_parts(content: Any) -> list[str]:
    if not isinstance(content, list):
        return []
    return [_sorted_json(part) for part in content if _part_text(part) is None]


def _calls(message: Mapping[str, Any]) -> list[list[str]]:
    calls = message.get("tool_calls")
    functions = (
        [call.get("function") for call in calls if isinstance(call, Mapping)]
        if isinstance(calls, list | tuple)
        else []
    )
    if not functions and message.get("function_call"):
        functions = [message["function_call"]]
    return [_call(function) for function in functions if isinstance(function, Mapping)]


def _call(function: Mapping[str, Any]) -> list[str]:
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = arguments.strip()
    return [str(function.get("name") or ""), _sorted_json(arguments)]


def _answers(message: Mapping[str, Any], role: str) -> str | None:
    """Which call a tool message answers."""
    if role != "tool":
        return None
    answered = message.get("tool_call_id") or message.get("name")
    return str(answered) if answered else None


def _sorted_json(value: Any) -> str:
    return _compact_sorted(_plain_numbers(value))


def _plain_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain_numbers(item) for key, item in value.items()}
    return value


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=DIGEST_BYTES).digest()
