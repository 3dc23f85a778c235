"""The Hugging Face model, from a local folder, and its forward pass over scored positions only."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from learner.train import attention, norm
from learner.train.logprobs import Scored, Taught, score, teach
from learner.train.sample import Sample

HfModel: TypeAlias = Any  # transformers is untyped

#: Nats by which the fused head may differ from the model's own logits (bfloat16 rounds to 0.03 at 8).
HEAD_TOLERANCE = 0.1


def pick_device(name: str) -> torch.device:
    """`auto` is the first GPU, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def load(folder: Path, device: torch.device) -> HfModel:
    """The model in `folder`, never from a hub, in the dtype it computes in: bfloat16, or float32 where it is
    stored so. Dropout is off. Raises OSError where the folder holds no model, ValueError where its head
    does more than one matrix product (soft caps, scales)."""
    transformers_logging.disable_progress_bar()  # the learner's lines are read by people
    stored = AutoConfig.from_pretrained(str(folder), local_files_only=True).dtype
    # Given at loading, since .to(bfloat16) would round the rotary frequencies as well: 0.05 nats a token.
    dtype = torch.float32 if stored in (None, torch.float32) else torch.bfloat16
    implementation = attention.register() if device.type == "cpu" else "sdpa"
    model = AutoModelForCausalLM.from_pretrained(
        str(folder), local_files_only=True, dtype=dtype, attn_implementation=implementation
    )
    model = model.to(device).eval()
    norm.replace(model)
    _check_head(model)
    return model


def head(model: HfModel) -> Tensor:
    """The output head's weight, (V, D)."""
    weight: Tensor = model.get_output_embeddings().weight
    return weight


def vocabulary(model: HfModel) -> int:
    return int(head(model).shape[0])


def answers(
    model: HfModel,
    samples: Sequence[Sample],
    head_gradient: Tensor | None = None,
    beside: Tensor | None = None,
) -> Scored:
    """Scores every answer token of the samples, laid end to end: (ΣT,) each, at each sample's temperature.
    With `beside`, (ΣT, K), K more tokens of each position: (ΣT, 1 + K). `head_gradient`: see `score`."""
    hidden, tokens, temperature = _scored_positions(model, samples)
    if beside is not None:
        tokens = torch.cat([tokens[:, None], beside], dim=1)
    return score(hidden, head(model), tokens, temperature, head_gradient)


@torch.no_grad()
def taught(model: HfModel, samples: Sequence[Sample], count: int) -> Taught:
    """As `answers`, and the `count` likeliest tokens of each position."""
    hidden, tokens, temperature = _scored_positions(model, samples)
    return teach(hidden, head(model), tokens, temperature, count)


def _scored_positions(model: HfModel, samples: Sequence[Sample]) -> tuple[Tensor, Tensor, Tensor]:
    """States before every answer token, the tokens, and their temperatures, laid end to end.

    Sequences are padded on the right; under causal attention no real token sees the padding, so no mask is
    needed and positions are right.
    """
    device = head(model).device
    longest = max(len(sample.ids) for sample in samples)
    ids = torch.zeros(len(samples), longest, dtype=torch.long)
    for row, sample in enumerate(samples):
        ids[row, : len(sample.ids)] = torch.from_numpy(sample.ids)
    rows = torch.cat([torch.full((s.scored,), row) for row, s in enumerate(samples)])
    before = torch.cat([torch.arange(s.prompt_length - 1, len(s.ids) - 1) for s in samples])
    temperature = torch.cat([torch.full((s.scored,), s.temperature) for s in samples])
    hidden = _hidden(model, ids.to(device))
    return (
        hidden[rows.to(device), before.to(device)],
        ids[rows, before + 1].to(device),
        temperature.to(device),
    )


@torch.no_grad()
def all_logprobs(model: HfModel, ids: Sequence[int]) -> list[float]:
    """Log-probabilities at temperature 1 of ids[1:], each given those before it."""
    tokens = torch.tensor([list(ids)], device=head(model).device)
    hidden = _hidden(model, tokens)[0, :-1]
    return score(
        hidden, head(model), tokens[0, 1:], torch.ones(len(ids) - 1, device=tokens.device)
    ).logprobs.tolist()


def _hidden(model: HfModel, ids: Tensor) -> Tensor:
    """Last hidden states, (B, L, D)."""
    states: Tensor = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    return states


@torch.no_grad()
def _check_head(model: HfModel) -> None:
    ids = torch.arange(8, device=head(model).device)[None] % vocabulary(model)
    own = model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)
    fused = (_hidden(model, ids)[0] @ head(model).T).float().log_softmax(-1)
    if (own - fused).abs().max() > HEAD_TOLERANCE:
        raise ValueError(f"{type(model).__name__} changes its logits after the head: not supported")
