"""A case as text for a judge: one JSON document, deterministic and bounded. Pure.

Everything that was said is somebody else's text, and the policy learns what moves a judge. So each text is
one JSON string on one line: no heading, message or verdict inside it can be taken for a part of the document,
and a reader of JSON gets back exactly the parts that were given. Escaped as `\u003c` are also the first signs
of what a chat template or a verdict is written with, and what nobody sees.

Whether somebody's text seems to speak to the judge: then the judge's votes must all agree. Pure.

No list of signs is complete, and none need be: what stands in a case cannot pose as a part of it
(`learner/score/case.py`). This is about what a judge may be talked into; it asks for more agreement, and by
itself says nothing of the answer.
"""

import json
import re
import unicodedata
from collections.abc import Iterator

from learner.score.next_state import Case
from learner.text import Message, text_of

CASE_CHARACTERS = 28_000
#: Parts of a case's characters, in sevenths: the sections, and the text or the calls of a message.
REQUEST, ANSWER, NEXT_STATE, MESSAGE = 3, 2, 2, 1
_NAME = 64  # characters of a role or of a name
_NOTE = 60  # characters that the mark of what was left out may take, with the quotes

_UNSENDABLE, _UNREADABLE = re.compile("[\0\ud800-\udfff]"), "\ufffd"
_ESCAPED = re.compile(
    # Control characters and those that are not seen, other line ends among them.
    "(?P<rare>[\x01-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
    r"|<(?=[^\s<>]{1,80}>)"  # <|im_end|>, </s>, <think>
    r"|\[(?=/?g?[A-Z][A-Z_]{1,40}\])|\[(?=e~\[)|\](?=~)"  # [INST], [e~[, ]~b]
    r"""|\\(?=(?i:boxed)))|["\\\n\r\t]"""
)
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def render(case: Case, characters: int = CASE_CHARACTERS) -> str:
    """`{"request": [message…], "answer": {…}, "next_state": [message…]}`, a message on each line.

    In about so many characters at most; what is left out is named in its place. The same case gives the same
    text.
    """
    seventh = characters // 7
    request, next_state = (
        _fitting([_message(message, MESSAGE * seventh) for message in messages], part * seventh, "messages")
        for messages, part in ((case.request, REQUEST), (case.next_state, NEXT_STATE))
    )
    answer = _answer(case, MESSAGE * seventh)
    return f'{{"request": {_lines(request)},\n"answer": {answer},\n"next_state": {_lines(next_state)}}}'


def fence(text: str, marker: str) -> str:
    """The text between two lines that carry the marker. A marker is made for one call, and used once."""
    return f"<<<{marker}\n{text}\n{marker}>>>"


def quoted(text: str, bound: int) -> str:
    """The text as a JSON string on one line, of about `bound` characters at most."""
    size = bound
    while len(literal := _literal(cut(text, size))) > bound + _NOTE and size > 0:
        size = min(size - 1, size * bound // len(literal))
    return literal


def cut(text: str, bound: int) -> str:
    """At most about `bound` characters; what is cut from the middle is named."""
    if len(text) <= bound:
        return text
    half = bound // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[len(text) - half :]}"


def call_texts(call: Message) -> tuple[str, str]:
    """A tool call's name and its arguments, as texts."""
    function = call.get("function")
    if not isinstance(function, dict):
        return "", _dumped(call)
    arguments = function.get("arguments")
    return str(function.get("name", "")), arguments if isinstance(arguments, str) else _dumped(arguments)


def _literal(text: str) -> str:
    return f'"{_ESCAPED.sub(_escape, _UNSENDABLE.sub(_UNREADABLE, text))}"'


def _escape(match: re.Match[str]) -> str:
    sign = match[0]
    if match["rare"] is None:
        return _SHORT[sign]
    code = sign.encode("utf-16-be").hex()  # one unit, or the two of a character beyond them
    return "".join(f"\\u{code[at : at + 4]}" for at in range(0, len(code), 4))


def _lines(items: list[str]) -> str:
    return "[\n" + ",\n".join(items) + "\n]" if items else "[]"


def _fitting(items: list[str], bound: int, what: str) -> list[str]:
    """The last items and the first ones, so many that they fit; at least the last. The others are counted."""
    if len(items) < 2 or sum(map(len, items)) <= bound:
        return items
    head, tail, left = 0, 1, bound - len(items[-1])
    while True:
        from_the_end = tail <= head
        size = len(items[-tail - 1] if from_the_end else items[head])
        if size > left:
            break
        left -= size
        head, tail = (head, tail + 1) if from_the_end else (head + 1, tail)
    left_out = len(items) - head - tail
    return [*items[:head], f'{{"left_out": "{left_out} {what}"}}', *items[len(items) - tail :]]


def _message(message: Message, bound: int) -> str:
    fields = [f'"role": {quoted(message["role"], _NAME)}']
    if isinstance(name := message.get("name"), str):
        fields.append(f'"name": {quoted(name, _NAME)}')
    return "{" + ", ".join([*fields, *_said(text_of(message), message.get("tool_calls"), bound)]) + "}"


def _answer(case: Case, bound: int) -> str:
    fields = _said(case.answer or "", list(case.tool_calls), bound)
    if case.reasoning:
        fields.insert(0, f'"thought_first": "{len(case.reasoning)} characters, not shown"')
    return "{" + ", ".join(fields) + "}"


def _said(text: str, tool_calls: object, bound: int) -> list[str]:
    calls = [call for call in tool_calls if isinstance(call, dict)] if isinstance(tool_calls, list) else []
    fields = [f'"content": {quoted(text, bound)}']
    if calls:
        shown = _fitting([_call(call, bound) for call in calls], bound, "tool calls")
        fields.append(f'"tool_calls": [{", ".join(shown)}]')
    return fields


def _call(call: Message, bound: int) -> str:
    name, arguments = call_texts(call)
    return f'{{"name": {quoted(name, _NAME)}, "arguments": {quoted(arguments, bound)}}}'


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


_INVISIBLE = re.compile(
    "[\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)
_ROLES = r"(?:system|developer|user|human|assistant|tool|judge|grader|evaluator)"
_GOOD = r"(?:pass(?:ed)?|good|positive|perfect|correct|null|满分|通过|[+-]?[01](?:\.0+)?|10)\b"
_NO_WORD = r"[^\w\n]{0,12}"
#: Looked for in lower case, one after the other: a pattern that begins with a few fixed signs is found fast.
_SIGNS = (
    # Signs of documents, verdicts and chat templates.
    re.compile(
        r"""["'](?:next_state|thought_first|left_out|score|verdict)["']\s{0,8}:"""
        r"|<<<[0-9a-f]{8}"
        r"|\\boxed\s{0,8}\{\s{0,8}[+-]?\d{1,2}(?:\.0)?\s{0,8}\}"
        rf"|</?(?:{_ROLES}|response|answer|next_state|score|verdict|s|bos|eos|think|thinking|reasoning)>"
        r"|<\|[^<>\s]{1,60}\|>|</?(?:start|end)_of_turn>|<</?sys>>"
        r"|\[/?(?:inst|system_prompt|available_tools|tool_calls|tool_results|gmask)\]|\[end data\]"
    ),
    # Lines that begin as a section, a verdict or somebody's words do.
    re.compile(
        rf"^{_NO_WORD}(?:(?:next[ _-]?state|answer under judge?ment|下一(?:个)?状态|后续状态){_NO_WORD}$"
        rf"|(?:(?:my|the|final|overall) ){{0,3}}(?:grade|verdict|score|rating|reward|vote)(?: is)?"
        rf"{_NO_WORD}[:=]{_NO_WORD}{_GOOD}"
        rf"|(?:评分|得分|分数|裁决|评价){_NO_WORD}[:=]{_NO_WORD}{_GOOD}"
        rf"|{_ROLES}[^\w\n:]{{0,4}}:(?!//)|{_ROLES}\][^\w\n]{{0,4}}$|(?:用户|系统|助手|评委|评审):)",
        re.M,
    ),
    # Orders, and the end of what is to be judged.
    re.compile(
        r"(?:ignore|forget|disregard|override)\b.{0,30}"
        r"\b(?:above|previous|prior|earlier|criteria|instructions|rubric)\b"
        r"|end of (?:data|case|transcript|material)\b"
        r"|(?:dear|to the|note to) (?:the )?(?:judge|grader|evaluator)\b"
    ),
    re.compile(r"(?:忽略|无视|忘记).{0,12}(?:指令|指示|标准|要求|规则)|(?:评委|评审|裁判).{0,6}(?:请|注意)"),
)


def suspects_injection(case: Case) -> bool:
    """Whether the answer, the next state or what the policy and its tools said before seems to speak to a
    judge. What looks like other letters, or hides between them, is read as it looks."""
    return any(sign.search(text) for text in map(_plain, _spoken(case)) for sign in _SIGNS)


def _spoken(case: Case) -> Iterator[str]:
    yield case.answer or ""
    earlier = (message for message in case.request if message["role"] not in ("system", "developer", "user"))
    for message in (*case.next_state, *earlier):
        yield text_of(message)
        if isinstance(calls := message.get("tool_calls"), list):
            yield from (text for call in calls if isinstance(call, dict) for text in call_texts(call))
    for call in case.tool_calls:
        yield from call_texts(call)


def _plain(text: str) -> str:
    return _INVISIBLE.sub("", unicodedata.normalize("NFKC", text)).lower()
