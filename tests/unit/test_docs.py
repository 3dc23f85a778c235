"""What people can type, call or set is documented; what the documents point to exists."""

import ast
import itertools
import re
import subprocess
from collections.abc import Iterator
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
#: Every page of the repository that a person reads. Rubrics are prompts, not pages.
LINKED = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "locks" / "README.md"]


def prose(text: str) -> str:
    """The page without its code blocks."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """The fragments that GitHub gives to the headings of a page; equal ones get a number after the first."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *$", prose(text), re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.add(next(name for name in numbered(slug) if name not in found))
    return found


def numbered(slug: str) -> Iterator[str]:
    yield slug
    yield from (f"{slug}-{n}" for n in itertools.count(1))


def links(page: Path) -> list[str]:
    """The relative links of a page, each with its anchor."""
    return re.findall(r"\]\((?!https?://|mailto:)([^)\s]+)\)", prose(page.read_text()))


def broken(page: Path) -> list[str]:
    """The links of a page that lead to no file, or to no heading of it."""
    return [link for link in links(page) if not leads_somewhere(page, link)]


def leads_somewhere(page: Path, link: str) -> bool:
    file, _, anchor = link.partition("#")
    target = page.parent / file if file else page
    return target.exists() and (not anchor or anchor in anchors(target.read_text()))


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


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_and_anchor_leads_somewhere(page):
    assert broken(page) == []


def test_the_pages_that_are_looked_at_are_all_that_git_tracks():
    ran = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    rubrics = ROOT / "learner" / "score" / "rubrics"
    tracked = {ROOT / name for name in ran.stdout.splitlines()}
    assert {page for page in tracked if page.parent != rubrics} - set(LINKED) == set()


def test_every_page_of_the_docs_is_linked_from_the_index():
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    assert set(index.parent.glob("*.md")) - {index} - linked == set()


def test_a_link_to_a_missing_page_or_heading_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Top\n[a](#top) [b](#bottom) [c](no.md) [d](other.md#two-1) [e](other.md#no)\n")
    (tmp_path / "other.md").write_text("## *Two*\n```\n# no\n```\n## Two\n")
    assert broken(page) == ["#bottom", "no.md", "other.md#no"]


def test_headings_become_the_anchors_that_github_makes():
    text = "# What is checked\n## `turn`: one row\n## Metrics (`steps.metrics`)\n## [Link](a.md), too\n"
    assert anchors(text) == {"what-is-checked", "turn-one-row", "metrics-stepsmetrics", "link-too"}


def test_files_that_the_documents_name_exist():
    named = set(
        re.findall(r"`((?:gateway|learner|store|local|tests|bench|migrations|docs)/[\w./-]+\.\w+)`", WORDS)
    )
    assert {name for name in named if not (ROOT / name).exists()} == set()


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_every_page_of_the_docs_says_first_what_it_is_for(page):
    title, first, *_ = page.read_text().split("\n\n")
    assert title.startswith("# ")
    assert first.startswith("This page ")


def test_the_glossary_is_alphabetical_and_explains_a_word_once():
    words = re.findall(r"^\| \*\*(.+?)\*\* \|", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert len(words) > 50
    assert words == sorted(set(words), key=lambda word: word.replace("-", " "))
