"""An engine's log-probabilities of given tokens, put on those tokens and no others. Pure.

`/generate` answers `[[null, id, …], [logprob, id, …], …]` from the position that was asked for: the first
token has nothing before it that was scored, so one token more is asked for and its entry is dropped.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dukou.errors import DukouError


class AlignmentError(DukouError):
    """The entries are not those of the tokens that were asked about: nothing may be made of them."""


def on_tokens(entries: Sequence[Any], ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """Log-probabilities, (N,) float32 in nats, of the N `ids` that end the entries; NaN where one is null.

    Raises:
        AlignmentError: too few entries, or an id that is not the one asked about.
    """
    if len(entries) < len(ids):
        raise AlignmentError(f"{len(entries)} log-probabilities for {len(ids)} tokens")
    last = entries[len(entries) - len(ids) :]
    for position, (entry, wanted) in enumerate(zip(last, ids, strict=True)):
        if int(entry[1]) != int(wanted):
            raise AlignmentError(f"position {position} is token {entry[1]}, not {wanted}: another tokenizer?")
    if len(entries) == len(ids) and len(ids):
        raise AlignmentError("the first token has no entry before it: one token more must be asked for")
    return np.array([np.nan if entry[0] is None else entry[0] for entry in last], np.float32)
