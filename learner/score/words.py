"""The words of a text, by which texts are compared. Pure."""

import re

_WORD = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]|[^\W\u3040-\u30ff\u4e00-\u9fff]+", re.UNICODE)


def words(text: str) -> list[str]:
    """In order and without case; a Chinese or Japanese character is a word. Marks and spaces are none."""
    return [word.casefold() for word in _WORD.findall(text)]
