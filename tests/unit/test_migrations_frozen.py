"""A migration makes the same schema for ever: it imports nothing that may change under it."""

import ast
from pathlib import Path

import pytest

MIGRATIONS = Path(__file__).parents[2] / "dukou" / "migrations"
OURS = ("dukou", "gateway", "learner", "bench", "tests")
#: What connecting takes, and what the schema is compared with.
OF_ENVIRONMENT = {
    "dukou.store": {"binary", "database", "tables"},
    "dukou.settings.load": {"load_config"},
}


def imports(path: Path) -> dict[str, set[str]]:
    """Module → the names taken from it (none for a plain `import`), wherever in the file."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update({alias.name: set() for alias in node.names})
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found.setdefault(module, set()).update(alias.name for alias in node.names)
    return found


def of_ours(path: Path) -> dict[str, set[str]]:
    return {name: taken for name, taken in imports(path).items() if name.split(".")[0] in (*OURS, "")}


@pytest.mark.parametrize("path", sorted((MIGRATIONS / "versions").glob("*.py")), ids=lambda path: path.stem)
def test_a_migration_imports_nothing_of_dukou(path: Path) -> None:
    assert of_ours(path) == {}


def test_the_environment_of_migrations_imports_only_what_connects_and_compares() -> None:
    assert of_ours(MIGRATIONS / "env.py") == OF_ENVIRONMENT
