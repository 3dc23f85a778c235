"""The probe: fixed prompts and the trainer's log-probabilities of them under the weights it exported.

The reconciler asks an engine for the same numbers after a load. Weights that were dropped, tied wrongly or
half read differ by nats; bfloat16 noise is about 0.05.
"""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from dukou.store.versions import Probe, ProbePrompt
from learner.train.model import HfModel, all_logprobs

TEXTS = (
    "The ferry crosses the river every hour, and the ticket costs two coins.",
    "def mean(values: list[float]) -> float:\n    return sum(values) / len(values)\n",
    "渡口边有一条小船，船夫在等最后一位客人。",
    '{"city": "Lisbon", "temperature": 21, "unit": "celsius"}',
)
#: Ids of each prompt where the model has no tokenizer.
PROMPT_LENGTH = 24


def prompts(base: Path, vocabulary: int) -> list[list[int]]:
    """The probe's prompts as token ids: the same for every version of a base model."""
    path = base / "tokenizer.json"
    if path.is_file():
        tokenizer = Tokenizer.from_file(str(path))
        return [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    return [
        [(row * 7919 + column * 104_729 + 1) % vocabulary for column in range(PROMPT_LENGTH)]
        for row in range(len(TEXTS))
    ]


def measure(model: HfModel, prompts: Sequence[Sequence[int]]) -> Probe:
    """The probe of a model: every id but each prompt's first, at temperature 1."""
    return Probe(tuple(ProbePrompt(tuple(ids), tuple(all_logprobs(model, ids))) for ids in prompts))
