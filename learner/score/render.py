"""A case as text for a judge: deterministic, bounded, and unable to speak for the judge. Pure.

Everything that was said is somebody else's text. It stands between two lines with a random marker that the
judged text cannot know, and what a verdict or a chat template is written with is taken apart.
"""

import json
import re

from learner.score.next_state import Case, Message, text_of

CASE_CHARACTERS = 28_000
#: Parts of a case's characters, in sevenths: the sections, and a single message or call.
REQUEST, ANSWER, NEXT_STATE, MESSAGE = 3, 2, 2, 1

_REPLACED: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile("[\0\ud800-\udfff]"), "\ufffd"),
    (re.compile(r"\\+boxed", re.I), "[boxed]"),
    (re.compile(r"""(["']score["'])\s*:""", re.I), r"\1 ="),
    (re.compile(r"<(/?)(think|thinking|reasoning)>", re.I), r"(\1\2)"),
    (re.compile(r"<\|([^|<>]{1,40})\|>"), r"(|\1|)"),
)
_INJECTION = re.compile(
    r"\\+boxed\s*\{\s*[+-]?\d{1,2}\s*\}"
    r"""|["']score["']\s*:|</?score>"""
    r"|^\W*(grade|verdict|score)\s*[:=]\s*(pass|good|\+?1|10)\b"
    r"|\[?end of data\]|\[end data\]|</(response|answer|next_state)>"
    r"|\b(ignore|forget|disregard)\b.{0,30}\b(above|previous|prior|earlier)\b"
    r"|\b(ignore|forget|disregard)\b.{0,30}\b(criteria|instructions|rubric)\b"
    r"|(忽略|无视|忘记).{0,12}(指令|指示|标准|要求|规则)",
    re.I | re.M,
)


def render(case: Case, characters: int = CASE_CHARACTERS) -> str:
    """The request, the answer and the whole next state, in about so many characters at most.

    The same case gives the same text.
    """
    seventh = characters // 7

    def shown(messages: tuple[Message, ...]) -> str:
        return "\n\n".join(_message(message, MESSAGE * seventh) for message in messages)

    sections = (
        ("REQUEST", shown(case.request), REQUEST),
        ("ANSWER UNDER JUDGEMENT", _answer(case, MESSAGE * seventh), ANSWER),
        ("NEXT STATE", shown(case.next_state), NEXT_STATE),
    )
    return "\n\n".join(f"## {title}\n{cut(text, part * seventh)}" for title, text, part in sections)


def fence(text: str, marker: str) -> str:
    """The text between two lines that carry the marker. A marker is made for one call, and used once."""
    return f"<<<{marker}\n{text}\n{marker}>>>"


def neutralise(text: str) -> str:
    """The text without NULs, half characters, verdict syntax and chat-template tokens."""
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    return text


def suspects_injection(case: Case) -> bool:
    """Whether the answer or the next state seems to speak to a judge."""
    spoken = [case.answer or "", *map(text_of, case.next_state)]
    return any(_INJECTION.search(text) for text in spoken)


def cut(text: str, bound: int) -> str:
    """At most about `bound` characters; what is cut from the middle is named."""
    if len(text) <= bound:
        return text
    half = bound // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def _message(message: Message, bound: int) -> str:
    name = f" {message['name']}" if isinstance(message.get("name"), str) else ""
    body = _body(text_of(message), message.get("tool_calls"), bound)
    return f"[{neutralise(message['role'] + name)}]\n{body}"


def _answer(case: Case, bound: int) -> str:
    thought = f"(thought first, {len(case.reasoning)} characters, not shown)\n" if case.reasoning else ""
    return thought + _body(case.answer or "", list(case.tool_calls), bound)


def _body(text: str, tool_calls: object, bound: int) -> str:
    parts = [neutralise(cut(text, bound))] if text else []
    calls = tool_calls if isinstance(tool_calls, list) else []
    parts += [neutralise(cut(_call(call), bound)) for call in calls]
    return "\n".join(parts) or "(empty)"


def _call(call: object) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return f"(tool call) {json.dumps(call, ensure_ascii=False, sort_keys=True)}"
    arguments = function.get("arguments")
    shown = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f"(tool call) {function.get('name')} {shown}"
