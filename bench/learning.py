"""Does it learn? A wish, through the whole system: rl, opd, combine, and the controls, a cell at a time.

A cell is a mode and a seed and takes minutes; its result is kept in bench/results/learning.json, and only
what is missing is run. Without arguments what is there is printed.

    python -m bench.learning --cell rl:0 --json
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from bench import installed
from bench.evidence.modes import MODES
from bench.evidence.plot import draw

RESULTS = Path(__file__).with_name("results") / "learning.json"
PICTURE = Path(__file__).parents[1] / "docs" / "learning.png"


def main() -> int:
    options = _arguments()
    cells = _read()
    for name in options.cell:
        if name in cells and not options.again:
            continue
        from bench.evidence.cell import run

        mode, _, seed = name.partition(":")
        cells[name] = run(mode, int(seed), installed().root.resolve())
        _write(cells)
    if cells:
        draw(list(cells.values()), PICTURE)
    print(table(cells), file=sys.stderr)
    print(json.dumps(summary(cells)))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.learning", description=__doc__)
    parser.add_argument(
        "--cell", action="append", default=[], type=_cell, metavar="MODE:SEED", help=", ".join(MODES)
    )
    parser.add_argument("--again", action="store_true", help="run cells whose result is there already")
    parser.add_argument(
        "--json", action="store_true", help="for every benchmark alike: the last line is JSON"
    )
    return parser.parse_args()


def _cell(name: str) -> str:
    mode, _, seed = name.partition(":")
    if mode not in MODES or not seed.isdigit():
        raise argparse.ArgumentTypeError(f"must be MODE:SEED with a mode of {', '.join(MODES)}")
    return name


def _read() -> dict[str, dict[str, Any]]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def _write(cells: dict[str, dict[str, Any]]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(cells, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


def summary(cells: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A mode's means over its seeds; a mode that was not run is null."""
    found: dict[str, Any] = {"steps": 16, "batch": 16}
    for mode in MODES:
        of_mode = [cell for cell in cells.values() if cell["mode"] == mode]
        found[mode] = _means(of_mode) if of_mode else None
    return found


def _means(cells: list[dict[str, Any]]) -> dict[str, Any]:
    names = ("before", "after", "perplexity_ratio")
    hinted = [cell["hinted"] for cell in cells if cell["hinted"] is not None]
    kl = [cell["curve"][-1]["kl"] for cell in cells if cell["curve"] and cell["curve"][-1]["kl"] is not None]
    return {
        **{name: round(fmean(cell[name] for cell in cells), 3) for name in names},
        **({"hinted": round(fmean(hinted), 3)} if hinted else {}),
        "kl": round(fmean(kl), 3) if kl else None,
        "n": min(cell["n"] for cell in cells),
        "steps": min(len(cell["curve"]) for cell in cells),
        "seeds": len(cells),
    }


def table(cells: dict[str, dict[str, Any]]) -> str:
    row = "{:<12} {:>6} {:>7} {:>15} {:>6} {:>11} {:>6}".format
    lines = [row("cell", "before", "after", "95% by topic", "kl", "perplexity", "steps")]
    for name, cell in cells.items():
        low, high = cell["after_interval"]
        kl = cell["curve"][-1]["kl"] if cell["curve"] else None
        lines.append(
            row(
                name,
                f"{cell['before']:.2f}",
                f"{cell['after']:.2f}",
                f"{low:.2f} to {high:.2f}",
                "-" if kl is None else f"{kl:.2f}",
                f"x {cell['perplexity_ratio']:.2f}",
                len(cell["curve"]),
            )
        )
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
