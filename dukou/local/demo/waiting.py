"""One line that says what the demo waits for, and how many minutes may be left."""

import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

EVERY_SECONDS = 60.0  # between two lines of the same wait, where lines cannot be replaced
_ANEW = "\r\x1b[K"  # the line's beginning, and nothing after it


def minutes(seconds: float, *, at_most: bool = False) -> str:
    """The words for what is left; rounded up, as a wait that ends early annoys nobody."""
    whole = -int(-max(0.0, seconds) // 60)
    if whole <= 1:
        return "less than a minute left"
    return f"{'at most' if at_most else 'about'} {whole} minutes left"


def left(done: int, of: int, elapsed: float, limit: float) -> str:
    """What is left until `of` things are done, at the pace of the `done` ones; seconds.

    Before the first is done only the limit is known. More than the limit is never left.
    """
    until_limit = limit - elapsed
    if done <= 0:
        return minutes(until_limit, at_most=True)
    at_this_pace = elapsed / done * max(0, of - done)
    return minutes(min(at_this_pace, until_limit))


def beyond(elapsed: float, usual: float) -> str:
    """What is left of a wait that usually takes so many seconds."""
    return minutes(usual - elapsed) if elapsed < usual else f"longer than usual, {elapsed:.0f} s so far"


class Line:
    """Lines for people on stderr. The one that waits is replaced on a terminal, and elsewhere said seldom."""

    def __init__(self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._lock = threading.Lock()
        self._waits_for = ""
        self._told = 0.0
        self._open = False  # whether the terminal's line is one that waits

    def say(self, line: str) -> None:
        """A line that stays."""
        with self._lock:
            self._write(f"{_ANEW if self._open else ''}[{time.strftime('%H:%M:%S')}] {line}\n")
            self._open = False

    def wait(self, what: str, left: str, so_far: str = "") -> None:
        """Waits for `what`, of which so much is left; `so_far`: what has come already."""
        line = f"[{time.strftime('%H:%M:%S')}] waiting for {what}{so_far and f' ({so_far})'}: {left}"
        with self._lock:
            if self._stream.isatty():
                self._write(f"{_ANEW}{line}")
                self._open = True
            elif what != self._waits_for or self._clock() - self._told >= EVERY_SECONDS:
                self._write(f"{line}\n")
                self._told = self._clock()
            self._waits_for = what

    @property
    def _stream(self) -> TextIO:
        return sys.stderr if self._out is None else self._out

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
