"""Whether a tool result is an error. Pure, by the marks that tools commonly leave."""

import json
import re
from typing import Any

from learner.text import Message, text_of

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
