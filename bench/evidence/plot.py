"""The curves as a picture: reward a step, and held-out before and after, an arm a colour."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def draw(cells: Sequence[Mapping[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (curve, bars) = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for number, cell in enumerate(cells):
        colour, label = f"C{number}", f"{cell['mode']}, seed {cell['seed']}"
        points = cell["curve"]
        curve.plot([p["step"] for p in points], [p["reward"] for p in points], colour, label=label)
        low, high = cell["after_interval"]
        bars.plot([0, 1], [cell["before"], cell["after"]], colour, marker="o", label=label)
        bars.plot([1 + number * 0.03] * 2, [low, high], colour)
    curve.set(xlabel="step", ylabel="mean reward of the batch", ylim=(-1, 1))
    bars.set(xticks=[0, 1], xticklabels=["version 0", "last version"], ylabel="held out, greedy", ylim=(0, 1))
    curve.grid(alpha=0.3)
    bars.grid(alpha=0.3)
    bars.legend(fontsize=7)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
