"""What a model recommends for sampling, and what following it costs, in a line."""

from collections.abc import Mapping, Sequence
from typing import Any

from dukou.local.engine.start import model_path
from dukou.settings.model import Config
from gateway.drain.sampling import SamplingClass, classify
from gateway.reconcile.engine_facts import UnknownDefaultsError, recommended

_OPTION = "--sampling-defaults"
#: What becomes of answers that are sampled as the model recommends.
_COSTS: dict[SamplingClass, str] = {
    "free": "and samples at its temperature, which are trained",
    "truncated": 'and truncated samples, which are dropped unless batch.truncated = "train"',
    "constrained": "and penalised samples, which cannot be trained",
    "greedy": "and greedy samples, which cannot be trained",
}


def told(config: Config) -> str:
    """The line for the model that `config` has the engine serve."""
    chosen = choice(config)
    try:
        return line(chosen, recommended(model_path(config).absolute()))
    except UnknownDefaultsError as error:
        return f"sampling: {chosen} (what the model recommends is not known: {error})"


def choice(config: Config) -> str:
    """`model` or `openai`: the setting, unless `engine.extra_args` says otherwise, for they come last."""
    given: Sequence[str] = config.engine.extra_args
    said: str = config.engine.sampling_defaults
    for at, argument in enumerate(given):
        if argument == _OPTION and at + 1 < len(given):
            said = given[at + 1]
        elif argument.startswith(f"{_OPTION}="):
            said = argument.partition("=")[2]
    return said


def line(chosen: str, values: Mapping[str, Any]) -> str:
    """What holds for requests that leave out how to sample, and what either choice of
    `engine.sampling_defaults` costs. `values`: what the model recommends."""
    if not values:
        return (
            "sampling: the model recommends nothing; requests that say nothing are sampled at temperature 1"
        )
    listed = ", ".join(f"{name} {value:g}" for name, value in values.items())
    follows = f'"model" gives users this quality {_COSTS[classify(values)]}'
    plain = '"openai" gives samples at temperature 1, which are trained, and users none of it'
    return f'sampling: "{chosen}" is set. The model recommends {listed}: {follows}; {plain}'
