"""Which request bodies were in flight when engines died. Pure: it is told lines and times.

What the lines say, one JSON object each:

    {"body": DIGEST, "engine": URL, "at": SECONDS, "begun": false}   the engine died with this body in flight
    {"body": DIGEST, "cleared": "begun" | "whole"}                   it was sent again, and its answer came

`begun` says whether bytes of an answer had come before the death. An answer that begins takes back the deaths
before an answer began, since what kills an engine by its prompt never gets there; a whole one takes back all.
"""

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import orjson

#: Seconds for which a death is remembered.
REMEMBERED = 600.0
#: Deaths of one engine that are no further apart, in seconds, are one: each worker notices it by itself, and
#: an engine takes longer to start again.
ONE_DEATH = 5.0
#: Deaths from which on a body is refused.
KILLS = 2

Answer = Literal["begun", "whole"]


@dataclass(frozen=True, slots=True)
class Death:
    engine: str
    at: float  # seconds since 1970
    begun: bool


def death_line(body: str, death: Death) -> bytes:
    entry = {"body": body, "engine": death.engine, "at": death.at, "begun": death.begun}
    return orjson.dumps(entry) + b"\n"


def cleared_line(body: str, answer: Answer) -> bytes:
    return orjson.dumps({"body": body, "cleared": answer}) + b"\n"


class Ledger:
    """What all lines together say."""

    def __init__(self) -> None:
        self._deaths: dict[str, list[Death]] = {}
        self._newest = -math.inf

    def read(self, lines: bytes) -> None:
        """Takes note of whole lines; one that cannot be read says nothing."""
        for line in lines.splitlines():
            try:
                self._note(orjson.loads(line))
            except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
                continue

    def is_empty(self, now: float) -> bool:
        """Whether no death is remembered; one look, so that nearly every request is let pass by it."""
        return now - self._newest >= REMEMBERED

    def count(self, body: str, now: float) -> int:
        """The deaths at which a body was in flight, those that are one counted once."""
        began: dict[str, float] = {}
        found = 0
        for death in sorted(self._remembered(body, now), key=lambda death: death.at):
            if death.at - began.get(death.engine, -math.inf) > ONE_DEATH:
                began[death.engine] = death.at
                found += 1
        return found

    def lines(self, now: float, room: int) -> list[bytes]:
        """What still counts, as lines; the newest of them where they are more than `room` bytes."""
        counting = [(death, body) for body in self._deaths for death in self._remembered(body, now)]
        counting.sort(key=lambda pair: pair[0].at)
        lines = [death_line(body, death) for death, body in counting]
        sizes = accumulate(len(line) for line in reversed(lines))
        kept = sum(size <= room for size in sizes)
        return lines[len(lines) - kept :]

    def _remembered(self, body: str, now: float) -> list[Death]:
        # A time in the future is a clock that was set back, or no time at all.
        return [death for death in self._deaths.get(body, ()) if abs(now - death.at) < REMEMBERED]

    def _note(self, entry: Any) -> None:
        """Raises KeyError, TypeError or ValueError where `entry` is none."""
        body = entry["body"]
        if not isinstance(body, str):
            raise TypeError(body)
        if "cleared" in entry:
            self._clear(body, entry["cleared"])
            return
        death = Death(str(entry["engine"]), float(entry["at"]), entry["begun"] is True)
        if not math.isfinite(death.at):
            raise ValueError(death.at)
        self._deaths.setdefault(body, []).append(death)
        self._newest = max(self._newest, death.at)

    def _clear(self, body: str, answer: object) -> None:
        if answer == "whole":
            self._deaths.pop(body, None)
        elif answer == "begun" and body in self._deaths:
            self._deaths[body] = [death for death in self._deaths[body] if death.begun]
