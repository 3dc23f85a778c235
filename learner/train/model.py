"""The Hugging Face model, from a local folder, and its forward pass over scored positions only."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from learner.train import attention, layers
from learner.train.logprobs import TeacherScores, TokenScores, score, score_with_likeliest
from learner.train.samples import Ids, Row, RowPiece, Sample, Sharing, plan

HfModel: TypeAlias = Any  # transformers is untyped

#: Nats by which the fused head may differ from the model's own logits (bfloat16 rounds to 0.03 at 8).
HEAD_TOLERANCE = 0.1
#: Share by which a branch's states may differ from those of the same tokens alone (bfloat16: 0.02).
BRANCH_TOLERANCE = 0.05


def pick_device(name: str) -> torch.device:
    """`auto` is the first GPU, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def load(folder: Path, device: torch.device, compute: torch.dtype | None = None) -> HfModel:
    """The model in `folder`, never from a hub. Its products are made in `compute`, by default what
    `compute_dtype` says. Dropout is off. Raises OSError where the folder holds no model, ValueError where
    its head does more than one matrix product (soft caps, scales)."""
    transformers_logging.disable_progress_bar()  # the learner's lines are read by people
    stored = AutoConfig.from_pretrained(str(folder), local_files_only=True).dtype
    served = torch.float32 if stored in (None, torch.float32) else torch.bfloat16
    # Given at loading, since .to(bfloat16) would round the rotary frequencies as well: 0.05 nats a token.
    dtype = compute or compute_dtype(served, device.type, multiplies_bfloat16())
    model = AutoModelForCausalLM.from_pretrained(
        str(folder), local_files_only=True, dtype=dtype, attn_implementation=attention.register()
    )
    model = model.to(device).eval()
    layers.replace(model)
    layers.widen(model)
    _check_head(model)
    model.sharing = _sharing(model)
    model.served_dtype = served
    return model


def compute_dtype(served: torch.dtype, device: str, multiplies: bool) -> torch.dtype:
    """The dtype of products, for weights that engines hold as `served`: float32 on a CPU that does not
    multiply bfloat16, where torch does it one number after the other (5 to 40 times slower). Pure."""
    return torch.float32 if device == "cpu" and not multiplies else served


def multiplies_bfloat16() -> bool:
    """Whether this CPU has products of bfloat16 matrices that torch uses (AVX-512, AMX, Arm's)."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def served_dtype(model: HfModel) -> torch.dtype:
    """The dtype that engines hold the weights in. Where the model computes in a wider one, weights are still
    rounded to this, so that trainer and engine are the same policy."""
    found: torch.dtype = model.served_dtype
    return found


def head(model: HfModel) -> Tensor:
    """The output head's weight, (V, D)."""
    weight: Tensor = model.get_output_embeddings().weight
    return weight


def sharing(model: HfModel) -> Sharing:
    """What a loaded model may compute once where samples begin alike."""
    found: Sharing = model.sharing
    return found


def vocabulary(model: HfModel) -> int:
    return int(head(model).shape[0])


def answers(model: HfModel, samples: Sequence[Sample]) -> TokenScores:
    """Scores the samples' answers, token after token, laid end to end: (ΣT,), at their temperatures."""
    return scores(model, plan(samples, 0, "nothing"))


def scores(
    model: HfModel,
    rows: Sequence[Row],
    head_gradient: Tensor | None = None,
    beside: Tensor | None = None,
) -> TokenScores:
    """As `answers`, of all samples of the rows. With `beside`, (ΣT, K), K more tokens of each position:
    (ΣT, 1 + K). `head_gradient`: see `score`. A row that branches comes alone."""
    hidden, tokens, temperature = _scored_positions(model, rows)
    if beside is not None:
        tokens = torch.cat([tokens[:, None], beside], dim=1)
    return score(hidden, head(model), tokens, temperature, head_gradient)


@torch.no_grad()
def answers_with_likeliest(model: HfModel, samples: Sequence[Sample], count: int) -> TeacherScores:
    """As `answers`, and the `count` likeliest tokens of each position."""
    hidden, tokens, temperature = _scored_positions(model, plan(samples, 0, "nothing"))
    return score_with_likeliest(hidden, head(model), tokens, temperature, count)


def _scored_positions(model: HfModel, rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
    """States before every scored token, the tokens, and their temperatures, laid end to end.

    Rows are padded on the right; under causal attention no real token sees the padding, so no mask is
    needed and positions are right.
    """
    device = head(model).device
    ids = torch.zeros(len(rows), max(len(row.ids) for row in rows), dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, : len(row.ids)] = torch.from_numpy(row.ids)
    which = torch.arange(len(rows)).repeat_interleave(torch.tensor([len(row.before) for row in rows]))
    before, tokens, temperature = (
        torch.from_numpy(np.concatenate(columns))
        for columns in zip(*((row.before, row.tokens, row.temperature) for row in rows), strict=True)
    )
    branching = rows[0] if rows[0].branches else None
    if branching is None:
        hidden = _hidden(model, ids.to(device))
    else:
        hidden = _branched(model, branching.ids, branching.positions, branching.pieces)
    return hidden[which.to(device), before.to(device)], tokens.to(device), temperature.to(device)


@torch.no_grad()
def all_logprobs(model: HfModel, ids: Sequence[int]) -> list[float]:
    """Log-probabilities at temperature 1 of ids[1:], each given those before it."""
    tokens = torch.tensor([list(ids)], device=head(model).device)
    hidden = _hidden(model, tokens)[0, :-1]
    return score(
        hidden, head(model), tokens[0, 1:], torch.ones(len(ids) - 1, device=tokens.device)
    ).logprobs.tolist()


def _hidden(model: HfModel, ids: Tensor, **more: Tensor) -> Tensor:
    """Last hidden states, (B, L, D)."""
    states: Tensor = model.get_decoder()(input_ids=ids, use_cache=False, **more).last_hidden_state
    return states


def _branched(model: HfModel, ids: Ids, positions: Ids, pieces: Sequence[RowPiece]) -> Tensor:
    """As `_hidden`, of one row that branches: (1, L, D)."""
    places = torch.from_numpy(positions)[None]
    mask = attention.as_mask(pieces)
    return _hidden(model, torch.from_numpy(ids)[None], position_ids=places, attention_mask=mask)


@torch.no_grad()
def _check_head(model: HfModel) -> None:
    ids = torch.arange(8, device=head(model).device)[None] % vocabulary(model)
    own = model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)
    fused = (_hidden(model, ids)[0] @ head(model).T).float().log_softmax(-1)
    if (own - fused).abs().max() > HEAD_TOLERANCE:
        raise ValueError(f"{type(model).__name__} changes its logits after the head: not supported")


def _sharing(model: HfModel) -> Sharing:
    config = model.config.get_text_config()
    if _rotations(config) & {"dynamic", "longrope"}:
        return "nothing"  # a token's rotation depends on the whole row's length
    kinds = getattr(config, "layer_types", None)
    if kinds is None and getattr(config, "sliding_window", None) is not None:
        return "chains"
    everywhere = all(kind == "full_attention" for kind in kinds or ())
    ours = head(model).device.type == "cpu"
    return "branches" if everywhere and ours and _branches_well(model) else "chains"


def _rotations(config: Any) -> set[str]:
    """The kinds of rotary embedding, of all layers."""
    given = getattr(config, "rope_parameters", None) or {}
    each = [given, *(value for value in given.values() if isinstance(value, dict))]
    return {str(parameters["rope_type"]) for parameters in each if "rope_type" in parameters}


@torch.no_grad()
def _branches_well(model: HfModel) -> bool:
    """Whether the states of a branch are, on an example, those of the same tokens alone."""
    ids = (np.arange(32) * 7919 + 104_729) % vocabulary(model)  # all over it: special tokens alone are noise
    positions, pieces = np.r_[:24, 16:24], (RowPiece(0, 0), RowPiece(24, 16))
    found = _branched(model, ids, positions, pieces)[0, 24:].float()
    alone = _hidden(model, torch.from_numpy(np.r_[ids[:16], ids[24:]])[None])[0, 16:].float()
    return bool((found - alone).norm() <= BRANCH_TOLERANCE * alone.norm())
