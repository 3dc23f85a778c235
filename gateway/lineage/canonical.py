"""Identity of messages: when two histories are the same conversation, although their bytes differ. Pure.

The rules, all of them:

* role: lower case; `developer` is `system`, `function` is `tool`.
* text: a string, or the text parts of a list joined without a separator. null, "", [] and absent are equal.
  Parts that are not text count by their JSON.
* an assistant's thinking does not count: neither `reasoning` fields nor `<think>…</think>`, also where the
  opening tag was in the prompt or the closing one never came.
* what no reader can see does not count, here and in the arguments of calls: line ends, blanks at the ends of
  lines, composed or decomposed accents, characters without a glyph (dukou/store/visible.py). Nor does outer
  whitespace.
* tool calls: name and arguments; arguments are parsed and written anew with sorted keys, 1.0 being 1. Ids of
  calls do not count: clients rename them. The `tool_call_id` of a result does.
* lines of a system message that tell the date or the time do not count: they change from turn to turn.
* every other key of a message does not count.

A history is a chain of digests that begins at the tenant and the key, so that conversations of two keys
never meet: digest[i] = blake2b(digest[i - 1] + message[i]). An exchange is such a chain of two: an answer,
and the message just before it. docs/lineage.md says what both are for.

Turns that were recorded when what nobody can see still counted have other digests. `Form.former` is what
those were made of, so that their conversations go on (gateway/lineage/canonical.py).

Digests of turns that were recorded when what no reader can see still counted. Pure.

Their rows keep the digests of the text as it was: line ends, blanks at the ends of lines, the form of accents
and characters without a glyph included. Where a request has any of these, a look-up asks for both digests,
and what is found by the former one is known by the present one from there on. This can go once no
conversation is continued that began before.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

from dukou.store.earlier import Earlier
from dukou.store.visible import visible

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

_Take = Callable[[str], str]  # which form of a text counts

_compact = json.JSONEncoder(separators=(",", ":")).encode
_compact_sorted = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


class Form(NamedTuple):
    """A message by the rules above."""

    role: str | None  # None: it is no object
    text: str
    data: bytes  # JSON of [role, text, other parts, tool calls, tool_call_id]
    former: bytes | None = None  # the same with what nobody can see; None: there is nothing of that


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
    taking = _Visible()
    role, said, data = _read(message, taking)
    former = _read(message, _as_it_is)[2] if taking.left_out else data
    return Form(role, said, data, former if former != data else None)


def text(message: Any) -> str:
    """The canonical text of a message; "" where it has none."""
    return form(message).text


class _Visible:
    """`visible`, and whether it ever left anything out."""

    __slots__ = ("left_out",)

    def __init__(self) -> None:
        self.left_out = False

    def __call__(self, text: str) -> str:
        plain = visible(text)
        self.left_out |= plain is not text
        return plain


def _as_it_is(text: str) -> str:
    return text


def _read(message: Mapping[str, Any], take: _Take) -> tuple[str, str, bytes]:
    """The role, the text and the data of a message's form."""
    role, content = _role(message), message.get("content")
    said, parts, calls = _text(content, role, take), _other_parts(content, take), _calls(message, take)
    answers = _answers(message, role)
    rest: str = _compact([parts, calls, answers])[1:] if parts or calls or answers else _EMPTY
    # ASCII escapes: lone surrogates have no UTF-8.
    return role, said, f"[{_compact(role)},{_compact(said)},{rest}".encode("ascii")


def _text(content: Any, role: str, take: _Take) -> str:
    if isinstance(content, list | tuple):
        content = "".join(_part_text(part) or "" for part in content)
    if not isinstance(content, str):
        return ""
    content = take(content)
    if role == "assistant" and "think>" in content:
        content = take(_THINKING.sub("", content))  # a blank before it may end a line now
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


def _other_parts(content: Any, take: _Take) -> list[str]:
    if not isinstance(content, list):
        return []
    return [_sorted_json(part, take) for part in content if _part_text(part) is None]


def _calls(message: Mapping[str, Any], take: _Take) -> list[list[str]]:
    calls, legacy = message.get("tool_calls"), message.get("function_call")
    if not calls and not legacy:
        return []
    known = calls if isinstance(calls, list | tuple) else ()
    functions = [call.get("function") for call in known if isinstance(call, dict)]
    if not functions and legacy:
        functions = [legacy]
    return [_call(function, take) for function in functions if isinstance(function, dict)]


def _call(function: Mapping[str, Any], take: _Take) -> list[str]:
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = take(arguments).strip()
    return [str(function.get("name") or ""), _sorted_json(arguments, take)]


def _answers(message: Mapping[str, Any], role: str) -> str | None:
    """Which call a tool message answers."""
    if role != "tool":
        return None
    answered = message.get("tool_call_id") or message.get("name")
    return str(answered) if answered else None


def _sorted_json(value: Any, take: _Take) -> str:
    return _compact_sorted(_plain(value, take))


def _plain(value: Any, take: _Take) -> Any:
    """The value with plain numbers and texts."""
    if isinstance(value, str):
        return take(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(item, take) for item in value]
    if isinstance(value, dict):
        return {_key(key, take): _plain(item, take) for key, item in value.items()}
    return value


def _key(key: Any, take: _Take) -> Any:
    return take(key) if isinstance(key, str) else key


def of_chain(start: bytes, forms: Sequence[Form], digests: Sequence[bytes]) -> Mapping[bytes, bytes]:
    """Present digest → former one, of those that differ; `digests` is the chain over `forms`."""
    if all(form.former is None for form in forms):
        return {}
    former = chain(start, [_formerly(form) for form in forms])
    return {now: then for now, then in zip(digests, former, strict=True) if now != then}


def of_exchange(start: bytes, before: Form, answer: Form) -> bytes | None:
    """The former digest of an exchange; None where it is the present one."""
    if before.former is None and answer.former is None:
        return None
    return exchange(start, _formerly(before), _formerly(answer))


def renewed(turns: Iterable[Earlier], former: Mapping[bytes, bytes]) -> Iterable[Earlier]:
    """The turns under their present digests; `former` as of `of_chain`."""
    present = {then: now for now, then in former.items()}
    return (_renewed(turn, present) for turn in turns) if present else turns


def _renewed(turn: Earlier, present: Mapping[bytes, bytes]) -> Earlier:
    def now(digest: bytes | None) -> bytes | None:
        return present.get(digest, digest) if digest is not None else None

    return replace(
        turn,
        history_hash=now(turn.history_hash),
        prompt_hash=now(turn.prompt_hash),
        exchange_hash=now(turn.exchange_hash),
    )


def _formerly(form: Form) -> Form:
    return form if form.former is None else form._replace(data=form.former)
