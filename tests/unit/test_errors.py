"""The printed tree of errors is that of the code, and an error that ends a command is told in a line."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from dukou import errors
from dukou.errors import DukouError, reports_errors
from dukou.settings.load import ConfigError
from gateway import cli as gateway_cli

ROOT = Path(__file__).parents[2]
PACKAGES = ("dukou", "gateway", "learner")
OF_PYTHON = {"Exception", "BaseException", "ValueError", "RuntimeError", "LookupError", "OSError", "KeyError"}
NO_ERROR = {"Abandoned"}


@cache
def sources() -> list[tuple[Path, ast.Module]]:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in paths]


@cache
def classes() -> list[tuple[Path, ast.ClassDef]]:
    return [
        (path, node) for path, tree in sources() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    ]


def exception_classes() -> dict[str, tuple[str, str]]:
    """Class → (its first base, its module), of all that derive from an exception class, however far."""
    bases: dict[str, list[str]] = {}
    modules: dict[str, str] = {}
    for path, node in classes():
        bases.setdefault(node.name, []).extend(base.id for base in node.bases if isinstance(base, ast.Name))
        modules[node.name] = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    found: set[str] = set()
    while more := {
        name for name, above in bases.items() if name not in found and (OF_PYTHON | found) & {*above}
    }:
        found |= more
    return {name: (bases[name][0], modules[name]) for name in found}


def printed_tree() -> dict[str, str]:
    """Class → the class that it stands under in the docstring."""
    above: list[str] = ["Exception"]
    tree: dict[str, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"(?: {4})+(\w+Error)\b", line):
            depth = (len(line) - len(line.lstrip())) // 4
            tree[match[1]] = above[depth - 1]
            above[depth:] = [match[1]]
    return tree


def test_every_exception_class_stands_in_the_printed_tree_under_its_base():
    bases = {name: base for name, (base, _) in exception_classes().items() if name not in NO_ERROR}
    assert printed_tree() == bases


def test_the_printed_tree_names_the_module_of_every_class_that_it_names_one_for():
    modules = {name: module for name, (_, module) in exception_classes().items()}
    named = re.findall(r"^ +(\w+Error) .*?((?:dukou|gateway|learner)\.[\w.]+)", errors.__doc__ or "", re.M)
    assert len(named) > 20
    assert dict(named) == {name: modules[name] for name, _ in named}


def test_no_two_exception_classes_share_a_name():
    counts = Counter(node.name for _, node in classes())
    assert [name for name in exception_classes() if counts[name] > 1] == []


def test_every_command_reports_its_errors():
    """But `make_models`, which runs in the engine's environment, where nothing of Dukou is."""
    mains = {
        path.relative_to(ROOT).as_posix(): [getattr(decorator, "id", "") for decorator in node.decorator_list]
        for path, tree in sources()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == "main"
    }
    commands = {path: found for path, found in mains.items() if _is_command(path)}
    assert len(commands) == 10
    assert {path for path, found in commands.items() if found != ["reports_errors"]} == set()


def _is_command(path: str) -> bool:
    runs_itself = '__name__ == "__main__"' in (ROOT / path).read_text(encoding="utf-8")
    # One runs in the engine's environment, the other hands over to the commands.
    aside = ("dukou/local/engine/cpu/make_models.py", "dukou/__main__.py")
    return path not in aside and (runs_itself or path.endswith("/cli.py"))


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (DukouError("no engine in x"), 1, "no engine in x\n"),
        (
            ConfigError("c.toml", ["a is wrong", "b is wrong"]),
            2,
            "c.toml: 2 problems\n  a is wrong\n  b is wrong\n",
        ),
        (OperationalError("select 1", {}, Exception("gone\nhint")), 1, "gone\n"),
    ],
)
def test_an_error_that_ends_a_command_is_a_line_and_a_status(error, status, said, capsys):
    @reports_errors
    def main() -> int:
        raise error

    assert main() == status
    assert capsys.readouterr().err == said


def test_a_fault_in_the_code_keeps_its_traceback():
    @reports_errors
    def main() -> int:
        raise KeyError("x")

    with pytest.raises(KeyError):
        main()


def test_a_command_that_succeeds_keeps_its_status():
    assert reports_errors(lambda status: status)(3) == 3


def test_a_wrong_configuration_ends_the_gateway_in_words(tmp_path, capsys):
    file = tmp_path / "config.toml"
    file.write_text("[gateway]\nprot = 1\n")
    assert gateway_cli.main(["drain", "--config", str(file)]) == 2
    assert "gateway.port" in capsys.readouterr().err


def test_every_handler_of_any_error_says_why_it_is_one():
    lines = [
        (path, line)
        for path, _ in sources()
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.match(r"\s*except( \(?(Base)?Exception\b.*)?:", line)
    ]
    assert len(lines) >= 10
    assert [(path.name, line.strip()) for path, line in lines if "  # " not in line] == []
