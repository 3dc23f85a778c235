"""The words of a text, by which texts are compared. Pure."""

import re

from store.visible import visible

_WORD = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]|[^\W\u3040-\u30ff\u4e00-\u9fff]+", re.UNICODE)


def words(text: str) -> list[str]:
    """In order and without case; a Chinese or Japanese character is a word. Marks and spaces are none.

    What no reader can see makes no other words: neither a soft hyphen inside one nor a decomposed accent.
    """
    return [word.casefold() for word in _WORD.findall(visible(text))]
