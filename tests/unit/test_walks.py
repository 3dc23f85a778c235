"""The walks in ARCHITECTURE.md follow the code: each stop exists, and calls the next one."""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Where one process writes what another reads. No call leads across.
MEDIA = {"Postgres", "the spool", "the routes file"}
STOP = re.compile(r"(\d+)\. `([\w/]+\.py): ([\w.]+)` .+?(?: \((by|returns to) ([\w ]+)\)|\.)")

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Stop:
    """One line of a walk. At most one of `medium` and `returns_to` is set."""

    number: int
    file: str
    name: str  # function, Class or Class.method
    medium: str | None = None
    returns_to: int | None = None


def parse(line: str) -> Stop:
    """Raises ValueError where the line has another form than a stop's."""
    match = STOP.fullmatch(line)
    if match is None:
        raise ValueError(f"not a stop: {line}")
    number, file, name, how, to = match.groups()
    if how == "returns to":
        return Stop(int(number), file, name, returns_to=int(to))
    if how == "by" and to not in MEDIA:
        raise ValueError(f"unknown medium {to!r}: {line}")
    return Stop(int(number), file, name, medium=to)


def walks(page: str) -> dict[str, list[Stop]]:
    """Title → stops, of the section "Three walks"."""
    section = page.partition("\n## Three walks\n")[2].partition("\n## ")[0]
    parts = (part.partition("\n") for part in section.split("\n### ")[1:])
    return {title: [parse(line) for line in text.splitlines() if line] for title, _, text in parts}


def find(root: Path, stop: Stop) -> Definition | None:
    """The definition that a stop names; None where there is none."""
    path = root / stop.file
    node: ast.Module | Definition | None = ast.parse(path.read_text()) if path.exists() else None
    for name in stop.name.split("."):
        inside = [] if node is None else node.body
        node = next((one for one in inside if isinstance(one, Definition) and one.name == name), None)
    return node if isinstance(node, Definition) else None


def mentions(caller: Definition, stop: Stop) -> bool:
    """Whether the caller's body uses the stop's name. A method is reached through a dot only."""
    owner, _, name = stop.name.rpartition(".")
    for node in (inner for statement in caller.body for inner in ast.walk(statement)):
        if isinstance(node, ast.Attribute) and node.attr == name:
            return True
        if not owner and isinstance(node, ast.Name) and node.id == name:
            return True
    return False


def problems(root: Path, stops: Sequence[Stop]) -> Iterator[str]:
    """What in a walk does not hold of the code under `root`."""
    found = {stop.number: find(root, stop) for stop in stops}
    if list(found) != list(range(1, len(stops) + 1)):
        yield f"the stops are numbered {[stop.number for stop in stops]}"
    for stop in stops:
        if found[stop.number] is None:
            yield f"{stop.number}: {stop.file} has no {stop.name}"
    for here, after in pairwise(stops):
        number = here.number if here.returns_to is None else here.returns_to
        if here.returns_to is not None and not 0 < number < here.number:
            yield f"{here.number}: it returns to {number}, which is no earlier stop"
            continue
        caller = found.get(number)
        if here.medium is None and caller is not None and not mentions(caller, after):
            yield f"{number}: it does not call {after.name}"


WALKS = walks((ROOT / "ARCHITECTURE.md").read_text())


def test_there_are_three_walks_of_ten_stops_or_more():
    assert len(WALKS) == 3
    assert all(len(stops) >= 10 for stops in WALKS.values())


@pytest.mark.parametrize("title", WALKS)
def test_each_stop_of_a_walk_exists_and_calls_the_next(title):
    assert list(problems(ROOT, WALKS[title])) == []


@pytest.fixture
def code(tmp_path):
    """A folder with a file of three functions and a class; `first` calls `second`, then `Box.put`."""
    (tmp_path / "code.py").write_text(
        "def first(box: Box) -> third:\n    second()\n    box.put(1)\n"
        "def second():\n    put = 1\n    print(put)\n"
        "async def third():\n    pass\n"
        "class Box:\n    def put(self, what):\n        second()\n"
    )
    return tmp_path


def walk(*names: str) -> list[Stop]:
    """The stops `name` or `name (ending)`, all in code.py."""
    stops = []
    for number, (name, _, ending) in enumerate((each.partition(" ") for each in names), 1):
        stops.append(parse(f"{number}. `code.py: {name}` does it{' ' + ending if ending else '.'}"))
    return stops


def test_a_walk_that_follows_the_calls_has_no_problem(code):
    assert list(problems(code, walk("first", "Box.put", "second (by Postgres)", "third"))) == []
    assert list(problems(code, walk("first", "second (returns to 1)", "Box.put", "second"))) == []


@pytest.mark.parametrize("missing", ["fourth", "Box.get", "first.put"])
def test_a_stop_that_does_not_exist_is_found(code, missing):
    assert f"2: code.py has no {missing}" in list(problems(code, walk("first", missing)))


def test_a_file_that_does_not_exist_is_found(code):
    assert list(problems(code, [Stop(1, "no.py", "first")])) == ["1: no.py has no first"]


def test_a_stop_that_does_not_call_the_next_is_found(code):
    assert list(problems(code, walk("second", "first"))) == ["1: it does not call first"]


def test_a_name_in_a_signature_is_no_call(code):
    assert list(problems(code, walk("first", "third"))) == ["1: it does not call third"]


def test_a_variable_of_a_methods_name_is_no_call(code):
    assert list(problems(code, walk("second", "Box.put"))) == ["1: it does not call Box.put"]


def test_a_stop_that_returns_to_one_that_does_not_call_the_next_is_found(code):
    assert list(problems(code, walk("first", "second (returns to 1)", "third"))) == [
        "1: it does not call third"
    ]


def test_a_return_to_no_earlier_stop_is_found(code):
    [problem] = problems(code, walk("first", "second (returns to 2)", "Box.put"))
    assert problem == "2: it returns to 2, which is no earlier stop"


def test_stops_that_are_not_numbered_in_order_are_found(code):
    first, second = walk("first", "second")
    assert next(problems(code, [second, first])) == "the stops are numbered [2, 1]"


@pytest.mark.parametrize(
    ("line", "because"),
    [
        ("1. `code.py` does it.", "not a stop"),
        ("- `code.py: first` does it.", "not a stop"),
        ("1. `code.py: first` does it (by magic)", "unknown medium"),
    ],
)
def test_a_line_of_another_form_is_refused(line, because):
    with pytest.raises(ValueError, match=because):
        parse(line)
