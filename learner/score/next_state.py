"""The next state: what followed a turn. Pure.

Whether a tool result is an error. Pure, by the marks that tools commonly leave.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from typing import Any

from dukou.store.contents import task_class
from dukou.store.scores import JudgedTurn
from learner.text import Message, text_of, well_formed

TOOL_ROLES = frozenset({"tool", "function"})


@dataclass(frozen=True, slots=True)
class Case:
    """What a judge judges: a request, its answer, and what came next. All messages in OpenAI's shape."""

    request: tuple[Message, ...]
    answer: str | None
    reasoning: str | None
    tool_calls: tuple[Message, ...]
    next_state: tuple[Message, ...]
    tenant: str = "default"
    task: str = "chat"  # chat | tools | tool_result

    @property
    def asked(self) -> str:
        """The text of the request's last user message; empty where there is none."""
        return next((text_of(message) for message in reversed(self.request) if message["role"] == "user"), "")


def case_of(judged: JudgedTurn) -> Case:
    """The recorded turn and its successor, as a case."""
    return Case(
        request=well_formed(judged.messages),
        answer=judged.response_text,
        reasoning=judged.reasoning_text,
        tool_calls=tuple(call for call in judged.tool_calls if isinstance(call, dict)),
        next_state=next_state(judged.next_messages, judged.parent_messages),
        tenant=judged.tenant,
        task=task_class(judged.messages, judged.tools),
    )


def next_state(messages: Sequence[Any], parent_messages: int | None) -> tuple[Message, ...]:
    """The new messages of the following request: a user message, or all parallel tool results.

    The answer itself, if the history does not count it, is skipped; the next state ends before a further
    assistant message, which only the client can have written. Empty where nothing new was said.
    """
    if parent_messages is None:
        return ()
    new = well_formed(messages[parent_messages:])
    after_answer = dropwhile(_by_assistant, new)
    return tuple(takewhile(lambda message: not _by_assistant(message), after_answer))


def _by_assistant(message: Message) -> bool:
    return bool(message["role"] == "assistant")


HEAD_LINES, TAIL_LINES = 3, 6  # where tools report errors; between them lies content that may speak of any

_EXIT = re.compile(
    r"(?:exit(?:ed)?(?: with)?[ _-]?(?:code|status)?|return[ _-]?code|退出码|返回码"
    r"|退出状态)[\s:=：]*(-?\d+)",
    re.I,
)
_ERROR_LINE = re.compile(
    r"^\W*(?:"
    r"[\w.]*(?:error|exception)\b(?: \w+){0,3}\s*[:：\]]|error\b(?! ?handling|-free|s? ?[:=] ?(?:0|none)\b)"
    r"|traceback \(most recent|fatal\b|panic\b|segmentation fault|aborted\b|killed\b|failed\b(?! ?[:=]? ?0)"
    r"|<(?:tool_use_)?error>|http(?:/\d\S*)? ?[45]\d\d\b|[45]\d\d (?:client|server) error"
    r"|(?:access|permission) denied|unauthori[sz]ed|forbidden\b|not found\b|timed? ?out\b|timeout\b"
    r"|invalid \w+"
    r"|sorry\b|something went wrong|oops\b|没有权限|不支持|未授权|用户(?:拒绝|取消)|调用(?:超时|失败)"
    r"|unknown (?:tool|function|command)|no such|cannot |could not |couldn't |unable to |refused\b|denied\b"
    r"|(?:[\u4e00-\u9fff]{0,6})(?:错误|异常|失败)(?=[\s:：,，。!！]|$)|出错|报错|超时|权限不足|无权限"
    r"|拒绝|找不到|未找到|不存在|无法|无效|未知"
    r")",
    re.I,
)
_ERROR_ANYWHERE = re.compile(
    r"command not found|no such file or directory|permission denied|connection (?:refused|reset|timed out)"
    r"|is not recognized as|timed out after|syntax ?error:|assertionerror|npm err!"
    r"|unhandled (?:exception|rejection)"
    r"|(?<![\d.])[1-9]\d* (?:failed|errors?)\b|build failed|compilation failed"
    r"|tool call was (?:rejected|denied)"
    r"|\*\*\* .{0,80}error \d+|error\[\w+\]:|does not exist|rate limit exceeded|quota exceeded"
    r"|user (?:denied|rejected|declined)"
    r"|命令未找到|没有那个文件或目录|权限不够|连接被拒绝|连接超时|执行失败|请求失败|调用失败|编译失败"
    r"|操作失败|用户拒绝",
    re.I,
)
_BAD_STATUS = frozenset(
    {"error", "failed", "failure", "fail", "timeout", "denied", "rejected", "cancelled", "失败"}
)
_FALSE_IS_BAD = ("success", "ok", "succeeded", "successful")
_TRUE_IS_BAD = ("is_error", "iserror", "failed", "timed_out", "timedout")
_FILLED_IS_BAD = ("error", "errors", "error_message", "exception", "traceback", "错误")
_EXIT_KEYS = ("exit_code", "exitcode", "returncode", "return_code", "exit_status")


def is_error(message: Message) -> bool:
    """Whether this tool result reports a failure. Nothing to say, as many commands do, is none."""
    if message.get("is_error") is True or message.get("status") == "error":
        return True
    text = text_of(message).strip()
    value = _json(text)
    return _object_failed(value) if isinstance(value, dict) else _text_failed(text)


def _object_failed(value: dict[str, Any]) -> bool:
    """Only the fields that say how it went count, not what was found."""
    fields = {str(key).casefold(): item for key, item in value.items()}
    code = next((fields[key] for key in _EXIT_KEYS if key in fields), None)
    if isinstance(code, int) and not isinstance(code, bool):
        return code != 0
    status = fields.get("status_code", fields.get("http_status", fields.get("code")))
    return (
        any(fields.get(key) is False for key in _FALSE_IS_BAD)
        or any(fields.get(key) is True for key in _TRUE_IS_BAD)
        or any(fields.get(key) for key in _FILLED_IS_BAD)
        or str(fields.get("status", "")).casefold() in _BAD_STATUS
        or (isinstance(status, int) and 400 <= status < 600)
    )


def _text_failed(text: str) -> bool:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    shown = lines[:HEAD_LINES] + lines[HEAD_LINES:][-TAIL_LINES:]
    codes = [match[1] for line in shown if (match := _EXIT.search(line))]
    if codes:
        return codes[-1] != "0"
    return any(_ERROR_LINE.match(line) or _ERROR_ANYWHERE.search(line) for line in shown)


def _json(text: str) -> Any:
    if not text.startswith("{"):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
