"""Which parts of one machine's stack are started again when they die."""

from pathlib import Path

import pytest

from dukou.local.stack import Stack
from dukou.settings.load import from_mapping


class FakePart:
    starts, last_start, process = 1, float("-inf"), None

    def __init__(self, name: str) -> None:
        self.name = name
        self.log = Path(name)
        self.events: list[str] = []

    def is_dead(self) -> bool:
        return True

    def start(self) -> None:
        self.events.append("start")

    def stop(self) -> None:
        self.events.append("stop")


@pytest.fixture
def stack() -> Stack:
    return Stack(from_mapping({"database": {"url": "postgresql://u@h/d"}}), {}, lambda _: None)


def test_whatever_died_is_started_again_but_for_what_was_retired(stack: Stack) -> None:
    engine, learner = FakePart("engine"), FakePart("learner")
    stack.parts = [engine, learner]  # type: ignore[list-item]
    stack.watch()
    stack.retire("learner")
    stack.watch()
    assert (engine.events, learner.events) == (["start", "start"], ["start", "stop"])
