"""The probe: fixed prompts and the trainer's log-probabilities of them under the weights it exported.

The reconciler asks an engine for the same numbers after a load. Weights that were dropped, tied wrongly or
half read differ by nats; bfloat16 noise is about 0.05.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from learner.train.model import HfModel, all_logprobs

TEXTS = (
    "The ferry crosses the river every hour, and the ticket costs two coins.",
    "def mean(values: list[float]) -> float:\n    return sum(values) / len(values)\n",
    "渡口边有一条小船，船夫在等最后一位客人。",
    '{"city": "Lisbon", "temperature": 21, "unit": "celsius"}',
)
#: Ids of each prompt where the model has no tokenizer.
LENGTH = 24


def prompts(base: Path, vocabulary: int) -> list[list[int]]:
    """The probe's prompts as token ids: the same for every version of a base model."""
    path = base / "tokenizer.json"
    if path.is_file():
        tokenizer = Tokenizer.from_file(str(path))
        return [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    return [
        [(row * 7919 + column * 104_729 + 1) % vocabulary for column in range(LENGTH)]
        for row in range(len(TEXTS))
    ]


def measure(model: HfModel, ids: Sequence[Sequence[int]]) -> dict[str, Any]:
    """`{"prompts": [{"ids": […], "logprobs": […]}]}`: nats at temperature 1, for every id but the first."""
    return {"prompts": [{"ids": list(prompt), "logprobs": all_logprobs(model, prompt)} for prompt in ids]}
