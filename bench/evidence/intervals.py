"""Intervals for answers in clusters: several questions about one topic are not independent. Pure."""

import random
from collections.abc import Sequence

DRAWS = 2000


def by_cluster(met: Sequence[tuple[str, bool]], seed: int = 0) -> tuple[float, float]:
    """95% interval of the share, from drawing whole clusters with replacement."""
    clusters: dict[str, list[bool]] = {}
    for name, outcome in met:
        clusters.setdefault(name, []).append(outcome)
    groups = list(clusters.values())
    draw = random.Random(seed)
    shares = []
    for _ in range(DRAWS):
        chosen = [outcome for group in draw.choices(groups, k=len(groups)) for outcome in group]
        shares.append(sum(chosen) / len(chosen))
    shares.sort()
    return shares[round(0.025 * DRAWS)], shares[round(0.975 * DRAWS) - 1]
