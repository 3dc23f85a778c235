"""What people can type, call or set is documented; what the documents point to exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
WORDS = "\n".join(page.read_text() for page in PAGES)


def targets() -> list[str]:
    return re.findall(r"^([a-z-]+):.*?##", (ROOT / "Makefile").read_text(), re.MULTILINE)


def endpoints() -> set[str]:
    """Every path that the gateway names in a route decorator."""
    found = set()
    for file in (ROOT / "gateway" / "relay").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.Constant):
                    path = str(call.args[0].value)
                    if path.startswith("/"):
                        found.add(re.sub(r"/?\{.*", "", path))
    return found


def test_the_readme_shows_both_commands_first():
    readme = (ROOT / "README.md").read_text()
    assert readme.index("make demo") < readme.index("make test") < readme.index("make up")


@pytest.mark.parametrize("target", targets())
def test_every_make_target_is_documented(target):
    assert f"make {target}" in WORDS


def test_every_endpoint_of_the_gateways_own_is_documented():
    assert {path for path in endpoints() if path not in WORDS} == set()
    assert {"/healthz", "/readyz", "/v1/models"} <= endpoints()


@pytest.mark.parametrize(
    "bench", sorted(p.stem for p in (ROOT / "bench").glob("[a-z]*.py") if "main(" in p.read_text())
)
def test_every_bench_is_documented(bench):
    assert f"B={bench}" in WORDS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_between_documents_leads_somewhere(page):
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_files_that_the_documents_name_exist():
    named = set(
        re.findall(r"`((?:gateway|learner|store|local|tests|bench|migrations|docs)/[\w./-]+\.\w+)`", WORDS)
    )
    assert {name for name in named if not (ROOT / name).exists()} == set()
