"""Whether somebody's text seems to speak to the judge: then the judge's votes must all agree. Pure.

No list of signs is complete, and none need be: what stands in a case cannot pose as a part of it
(`learner/score/render.py`). This is about what a judge may be talked into; it asks for more agreement, and by
itself says nothing of the answer.
"""

import re
import unicodedata
from collections.abc import Iterator

from learner.score.next_state import Case
from learner.score.render import call_texts
from learner.text import text_of

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
