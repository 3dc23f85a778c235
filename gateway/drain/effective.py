"""What an answer was sampled with: the request, and for what it leaves out the engine's defaults. Pure.

The defaults are those of a chat request. Nobody may guess them: a model's own file can hold a temperature, a
top-p and a penalty, and an answer that was sampled with those is another sample than one at temperature 1.
"""

from collections.abc import Mapping
from typing import Any

from gateway.drain import sampling
from gateway.drain.sampling import SamplingClass

#: The fields that an engine may take from its model where a chat request leaves them out: SGLang 0.5.23 takes
#: these of `generation_config.json`, whatever else it holds (`do_sample` too), and vLLM takes them as well.
FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
#: What a request settles by itself, whatever the engine takes for the rest.
_SETTLED: tuple[SamplingClass, ...] = ("greedy", "constrained")


def completed(body: Mapping[str, Any], defaults: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A chat request with all that it was sampled with; a field that is null counts as left out.

    `defaults` None: unknown. Returns None where the request leaves out a field whose default is unknown.
    """
    if defaults is None:
        return None if any(body.get(name) is None for name in FIELDS) else body
    taken = {name: value for name, value in defaults.items() if body.get(name) is None}
    return {**body, **taken} if taken else body


def sampling_class(body: Mapping[str, Any], defaults: Mapping[str, Any] | None) -> SamplingClass | None:
    """The class of a chat answer, by request and defaults together; None: unknown."""
    whole = completed(body, defaults)
    if whole is not None:
        return sampling.classify(whole)
    alone = sampling.classify(body)
    return alone if alone in _SETTLED else None


def temperature(body: Mapping[str, Any], defaults: Mapping[str, Any] | None) -> float | None:
    """The temperature that a chat answer was sampled at; None: unknown."""
    whole = completed(body, defaults)
    if whole is not None:
        return sampling.temperature(whole)
    return None if body.get("temperature") is None else sampling.temperature(body)
