"""The line that says what the demo waits for, and how long it may take."""

import io
import math

import pytest

from dukou.local.demo.waiting import EVERY_SECONDS, Line, beyond, left, minutes


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "less than a minute left"),
        (0, "less than a minute left"),
        (60, "less than a minute left"),
        (61, "about 2 minutes left"),
        (600, "about 10 minutes left"),
    ],
)
def test_minutes_are_rounded_up(seconds, words):
    assert minutes(seconds) == words


def test_before_the_first_is_done_only_the_limit_is_known():
    assert left(0, 18, 60, 660) == "at most 10 minutes left"


def test_what_is_left_goes_by_the_pace_so_far_and_never_beyond_the_limit():
    assert left(6, 18, 120, 660) == "about 4 minutes left"
    assert left(1, 18, 60, 660) == "about 10 minutes left"
    assert left(20, 18, 300, 660) == "less than a minute left"
    assert left(1, 2, 180, math.inf) == "about 3 minutes left"


def test_a_wait_that_lasts_longer_than_usual_promises_nothing():
    assert beyond(10, 120) == "about 2 minutes left"
    assert beyond(130, 120) == "longer than usual, 130 s so far"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_line_is_replaced_and_ends_before_one_that_stays():
    out = Terminal()
    line = Line(out)
    line.wait("the engine", "about 2 minutes left")
    line.wait("the engine", "less than a minute left")
    line.say("ready")
    assert out.getvalue().count("\n") == 1
    first, second, stays = out.getvalue().split("\r\x1b[K")[1:]
    assert first.endswith("waiting for the engine: about 2 minutes left")
    assert second.endswith("waiting for the engine: less than a minute left")
    assert stays.endswith("ready\n")


def test_elsewhere_a_wait_is_said_at_its_beginning_and_then_once_a_minute():
    out, now = io.StringIO(), [0.0]
    line = Line(out, lambda: now[0])
    for second in range(int(2.5 * EVERY_SECONDS)):
        now[0] = float(second)
        line.wait("18 versions", "about 3 minutes left", f"{second} turns")
    line.wait("the last turns", "less than a minute left")
    said = [text.split("] ")[1] for text in out.getvalue().splitlines()]
    assert said == [
        "waiting for 18 versions (0 turns): about 3 minutes left",
        "waiting for 18 versions (60 turns): about 3 minutes left",
        "waiting for 18 versions (120 turns): about 3 minutes left",
        "waiting for the last turns: less than a minute left",
    ]
