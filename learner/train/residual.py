"""The residual stream in float32, beside weights and products in bfloat16.

Every layer adds to the stream, and rounding the sum each time is most of what the trainer's log-probabilities
are off by. Only additions get wider: norms give the products what they multiply in the weights' dtype.
"""

from typing import Any

import torch
from torch import Tensor, nn


def widen(model: Any) -> bool:
    """From now on embeddings leave their module in float32, and what is added to them stays so. Returns
    whether this model can: where a layer multiplies the stream itself by weights, or its last norm is not
    ours (`learner/train/norm.py`), it stays as it is."""
    handle = model.get_input_embeddings().register_forward_hook(_as_float32)
    able = _keeps_its_dtype(model)
    if not able:
        handle.remove()
    return able


@torch.no_grad()
def _keeps_its_dtype(model: Any) -> bool:
    """Whether a pass over an example ends in the dtype of the weights, as heads need it."""
    ids = torch.arange(4, device=model.device)[None] % model.get_output_embeddings().weight.shape[0]
    try:
        states: Tensor = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    except RuntimeError:  # torch multiplies no two dtypes
        return False
    return bool(states.dtype == model.dtype)


def _as_float32(module: nn.Module, given: tuple[Tensor, ...], found: Tensor) -> Tensor:
    return found.float()
