"""What an engine's log says about its death, in a sentence."""

import re
from collections.abc import Sequence

#: Tried in order; the last match of the first pattern that matches anywhere is the answer.
_CAUSES: Sequence[tuple[re.Pattern[str], str]] = [
    (re.compile(r"address already in use|\[Errno 98\]", re.I), "its port is taken by another process"),
    (
        re.compile(r"out of memory|Not enough memory|Cannot allocate memory|MemoryError", re.I),
        "it ran out of memory: lower --mem-fraction-static or --max-total-tokens (engine.extra_args)",
    ),
    (
        re.compile(r"(?:size mismatch|shape mismatch|The size of tensor|mat1 and mat2 shapes)[^\n]*", re.I),
        "weights of another shape were loaded: {}",
    ),
    (
        re.compile(r"[^\n]*(?:is not a valid model identifier|does not appear to have a file named"
                   r"|Repo id must|LocalEntryNotFoundError|No such file or directory: '[^'\n]*)[^\n]*"),
        "its model cannot be found: {}",
    ),
    (re.compile(r"error: (?:unrecognized arguments|argument )[^\n]*"), "it does not know an option: {}"),
    (re.compile(r"No module named '[^'\n]+'"), "its environment is incomplete ({}): run `make engine`"),
]  # fmt: skip
_EXCEPTION = re.compile(
    r"^(?:\[[^\]\n]*\] )?((?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Exit)\b[^\n]*)", re.M
)


def why_dead(log: str) -> str:
    """The meaningful last error of an engine's log: a known cause, the last exception, or the last line."""
    for pattern, sentence in _CAUSES:
        matches = list(pattern.finditer(log))
        if matches:
            return sentence.format(matches[-1][0].strip()[:300])
    exceptions = _EXCEPTION.findall(log)
    if exceptions:
        return str(exceptions[-1]).strip()[:300]
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return f"its last words were: {lines[-1][:300]}" if lines else "it said nothing"
