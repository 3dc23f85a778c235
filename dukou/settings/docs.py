"""Writes config.toml and the tables of two pages from the model: `python -m dukou.settings.docs`."""

import textwrap
from collections.abc import Iterable
from pathlib import Path

from dukou.settings.keys import Setting, literal, settings
from dukou.settings.openclaw import KEYS

_HEAD = """\
# Settings. A line with a letter right after its # is a setting at its default: take the # away to change it.
# In text, ${ENV} and ${ENV:-default} come from the environment, and $$ is a dollar sign.
# DUKOU_<SECTION>_<KEY>=value in the environment wins over this file (DUKOU_GATEWAY_PORT, DUKOU_STATE_DIR).
"""

#: Between these lines a page is written by this module.
BEGIN, END = "<!-- written by `python -m dukou.settings.docs` -->", "<!-- up to here -->"


def render() -> str:
    """config.toml: every key at its default, in comments, under its description."""
    lines = [_HEAD]
    table = ""
    for setting in settings().values():
        path, _, name = setting.key.rpartition(".")
        if path != table:
            table = path
            lines += ["", f"[{table}]"]
        lines += textwrap.wrap(_explained(setting), 100, initial_indent="# ", subsequent_indent="# ")
        lines += [f"#{name} = {literal(setting.default)}"]
    return "\n".join(lines) + "\n"


def configuration_table() -> str:
    """The table of docs/configuration.md."""
    rows = (
        (
            f"`{setting.key}`",
            f"`{literal(setting.default)}`",
            _cell(setting.values),
            _cell(setting.description),
        )
        for setting in settings().values()
    )
    return _table(("key", "default", "values", "meaning"), rows)


def openclaw_table() -> str:
    """The table of docs/coming-from-openclaw-rl.md."""
    rows = (
        (f"`{key.theirs}`", f"`{key.ours}`" if key.ours else "—", _cell(key.answer.format(value="…")))
        for key in KEYS
    )
    return _table(("there", "here", "remark, or the warning where nothing takes it over"), rows)


def with_table(page: str, table: str) -> str:
    """The page with its part between BEGIN and END replaced. Raises ValueError where they are missing."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page lacks {BEGIN} and {END}")
    return f"{head}{BEGIN}\n{table}{END}{tail}"


def pages(root: Path) -> dict[Path, str]:
    """Every file that follows from the model, with the text that it should have."""
    configuration = root / "docs" / "configuration.md"
    coming = root / "docs" / "coming-from-openclaw-rl.md"
    return {
        root / "config.toml": render(),
        configuration: with_table(configuration.read_text(encoding="utf-8"), configuration_table()),
        coming: with_table(coming.read_text(encoding="utf-8"), openclaw_table()),
    }


def _explained(setting: Setting) -> str:
    return f"{setting.description} ({setting.values})" if setting.values else setting.description


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    for file, text in pages(Path(__file__).parent.parent).items():
        file.write_text(text, encoding="utf-8")
