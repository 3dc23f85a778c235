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
from typing import Any, NamedTuple

DIGEST_BYTES = 16

_ROLES = {"developer": "system", "function": "tool"}
_THINKING = re.compile(
    r"\A(?:(?!<think>).)*?</think>|<think>.*?</think>|<think>(?:(?!</think>).)*\Z", re.DOTALL
)
_CLOCK_LINE = re.compile(
    r"^[ \t>*#-]*(?:the )?(?:current|today'?s)\s+(?:local )?(?:date|time)\b[^\n]*$",
    re.IGNORECASE | re.MULTILINE,
)

_EMPTY = "[],[],null]"  # neither other parts nor calls, and no answer to one

_compact = json.JSONEncoder(separators=(",", ":")).encode
_compact_sorted = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


class Form(NamedTuple):
    """A message by the rules above."""

    role: str | None  # None: it is no object
    text: str
    data: bytes  # JSON of [role, text, other parts, tool calls, tool_call_id]


@lru_cache(maxsize=4096)
def root(tenant: str, key_id: str | None) -> bytes:
    """The digest that every history of this key begins with."""
    return blake2b(json.dumps([tenant, key_id]).encode(), digest_size=DIGEST_BYTES).digest()


def chain(start: bytes, forms: Iterable[Form]) -> list[bytes]:
    """The digests after each message; [messages] of DIGEST_BYTES each."""
    digests, last = [], start
    for each in forms:
        last = extend(last, each)
        digests.append(last)
    return digests


def extend(digest: bytes, form: Form) -> bytes:
    """The digest of a history with one more message."""
    return blake2b(digest + form.data, digest_size=DIGEST_BYTES).digest()


def exchange(start: bytes, before: Form, answer: Form) -> bytes | None:
    """The digest of an answer with the message before it; None where that is nothing or a system message."""
    if before.role in (None, "system", "assistant") or answer.role is None:
        return None
    return extend(extend(start, before), answer)


def form(message: Any) -> Form:
    """The message by the rules above; what is no object counts as its content."""
    if not isinstance(message, dict):
        return form({"content": message})._replace(role=None)
    role, content = _role(message), message.get("content")
    said, parts, calls = _text(content, role), _other_parts(content), _calls(message)
    answers = _answers(message, role)
    rest: str = _compact([parts, calls, answers])[1:] if parts or calls or answers else _EMPTY
    # ASCII escapes: lone surrogates have no UTF-8.
    return Form(role, said, f"[{_compact(role)},{_compact(said)},{rest}".encode("ascii"))


def text(message: Any) -> str:
    """The canonical text of a message; "" where it has none."""
    return form(message).text


def _text(content: Any, role: str) -> str:
    if isinstance(content, list | tuple):
        content = "".join(_part_text(part) or "" for part in content)
    if not isinstance(content, str):
        return ""
    if role == "assistant" and "think>" in content:
        content = _THINKING.sub("", content)
    if role == "system" and _may_tell_time(content.lower()):
        content = _CLOCK_LINE.sub("", content)
    return str(content.strip())


def _role(message: Mapping[str, Any]) -> str:
    role = str(message.get("role") or "").lower()
    return _ROLES.get(role, role)


def _may_tell_time(lowered: str) -> bool:
    """Searching for two words costs much less than the pattern, which nearly never matches."""
    return "date" in lowered or "time" in lowered


def _part_text(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    value = part.get("text") if isinstance(part, dict) else None
    return value if isinstance(value, str) else None


def _other_parts(content: Any) -> list[str]:
    if not isinstance(content, list):
        return []
    return [_sorted_json(part) for part in content if _part_text(part) is None]


def _calls(message: Mapping[str, Any]) -> list[list[str]]:
    calls, legacy = message.get("tool_calls"), message.get("function_call")
    if not calls and not legacy:
        return []
    known = calls if isinstance(calls, list | tuple) else ()
    functions = [call.get("function") for call in known if isinstance(call, dict)]
    if not functions and legacy:
        functions = [legacy]
    return [_call(function) for function in functions if isinstance(function, dict)]


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
