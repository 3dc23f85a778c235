"""Spans of an answer's tokens, as `turns.trained_tokens` has them: begins and ends by turns, int4[]. Pure.

An end is the position after the last token. Spans are in order, none is empty and none touches the next.
"""

from typing import Any

import numpy as np
import numpy.typing as npt


def pack(chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """The spans of the positions that are True, shape [2 × spans]."""
    edges = np.diff(chosen.astype(np.int8), prepend=0, append=0)
    return np.flatnonzero(edges).astype(np.int32)


def positions(spans: npt.NDArray[Any], length: int) -> npt.NDArray[np.int64]:
    """All positions of the spans, rising. Raises ValueError where they are no spans of `length` tokens."""
    edges = np.asarray(spans, np.int64)
    if len(edges) % 2 or (np.diff(edges, prepend=-1) <= 0).any() or (len(edges) and edges[-1] > length):
        raise ValueError(f"{edges.tolist()} are no spans of {length} tokens: begins and ends by turns")
    inside = np.zeros(length + 1, np.int64)
    inside[edges] = 1
    return np.flatnonzero(np.cumsum(inside)[:-1] % 2)
