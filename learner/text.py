"""Reads texts: the words of a text, the text of a message, an answer without its thinking. Pure."""

import re
from collections.abc import Iterable
from typing import Any

from dukou.store.visible import visible

#: A chat message in OpenAI's shape, as a client sent it.
Message = dict[str, Any]

_WORD = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]|[^\W\u3040-\u30ff\u4e00-\u9fff]+", re.UNICODE)
_THINKING = re.compile(r"<(think|thinking|reasoning)>.*?(</\1>|\Z)", re.S | re.I)
_THINKING_END = re.compile(r"\A.*</(think|thinking|reasoning)>", re.S | re.I)


def words(text: str) -> list[str]:
    """The words of a text, in order and in lower case; a Chinese or Japanese character is a word.

    Punctuation and spaces are none. Invisible characters make no difference: neither a soft hyphen inside a
    word nor a decomposed accent.
    """
    return [word.casefold() for word in _WORD.findall(visible(text))]


def without_thinking(text: str) -> str:
    """The text without thought blocks, also without one that never ends or whose beginning is missing."""
    return _THINKING_END.sub("", _THINKING.sub(" ", text))


def well_formed(messages: Iterable[Any]) -> tuple[Message, ...]:
    """The entries that are messages: clients send lists with anything in them."""
    return tuple(m for m in messages if isinstance(m, dict) and isinstance(m.get("role"), str))


def text_of(message: Message) -> str:
    """The readable text of a message; parts that are not text are named in brackets, never left out."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(_text_of_part(part) for part in content)


def _text_of_part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        if isinstance(part.get("text"), str):
            return str(part["text"])
        return f"[{part.get('type', 'part')} omitted]"
    return "[part omitted]"
