"""RMSNorm that rounds once, and keeps its input in the weight's dtype for the backward pass, with no float32
copies. The input itself, the residual stream, may be float32 (`learner/train/layers.py`).

The residual stream in float32, beside weights and products in bfloat16.

Every layer adds to the stream, and rounding the sum each time is most of what the trainer's log-probabilities
are off by. Only additions get wider: norms give the products what they multiply in the weights' dtype.

The embedding's gradient, row by row into its master: a dense one in the model's dtype, made for every
micro-batch, is as large as the vocabulary, nearly all zeros, and rounds what many micro-batches add up to.
"""

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


def replace(model: nn.Module) -> int:
    """Every layer that computes exactly this norm does so from now on; returns how many do. Others (a weight
    that counts from 1, a mean taken off) stay as they are."""
    known = [module for module in model.modules() if _is_known(module)]
    for module in known:
        module.forward = partial(_norm, module)
    return len(known)


def _is_known(module: nn.Module) -> bool:
    """Whether it computes the same, on an example in float32."""
    weight, epsilon = getattr(module, "weight", None), getattr(module, "variance_epsilon", None)
    if not isinstance(weight, Tensor) or weight.dim() != 1 or not isinstance(epsilon, float):
        return False
    example = torch.linspace(-3, 5, 2 * len(weight), device=weight.device).view(2, -1)
    exact = copy.deepcopy(module).float()
    with torch.no_grad():
        return torch.equal(exact(example), _norm(exact, example))


def _norm(module: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = _RmsNorm.apply(x, module.weight, module.variance_epsilon)  # type: ignore[no-untyped-call]
    return y


class _RmsNorm(torch.autograd.Function):
    """y = weight · x·r, r = 1/sqrt(mean(x²) + ε), in float32, rounded to the weight's dtype."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + epsilon)
        ctx.save_for_backward(x.to(weight.dtype), weight, scale)
        ctx.dtype = x.dtype
        return (x * scale).mul_(weight).to(weight.dtype)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor | None, ...]:
        """With n = x·r and g = dy·weight: dx = r·(g − n·mean(g·n)), d weight = Σ dy·n."""
        x, weight, scale = ctx.saved_tensors
        normed = x * scale
        d_weight = None
        if ctx.needs_input_grad[1]:
            d_weight = (d_y * normed).reshape(-1, len(weight)).sum(0).to(weight.dtype)
        d_normed = d_y * weight.float()
        along = torch.linalg.vecdot(d_normed, normed)[..., None] / len(weight)
        return d_normed.addcmul_(normed, along, value=-1).mul_(scale).to(ctx.dtype), d_weight, None


def widen(model: Any) -> bool:
    """From now on embeddings leave their module in float32, and what is added to them stays so. Returns
    whether this model can: where a layer multiplies the stream itself by weights, or its last norm is not
    ours (`learner/train/layers.py`), it stays as it is."""
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


def gather(embedding: nn.Module, master: nn.Parameter) -> None:
    """From now on, the embedding's gradient is added to `master.grad` where it is made. An embedding that
    does more than look up (scales, limits a norm) stays as it is."""
    if type(embedding) is nn.Embedding and embedding.max_norm is None and not embedding.scale_grad_by_freq:
        embedding.forward = partial(_look_up, embedding, master)  # type: ignore[method-assign]


def _look_up(embedding: nn.Embedding, master: nn.Parameter, ids: Tensor) -> Tensor:
    rows: Tensor = _Rows.apply(ids, embedding.weight, master, embedding.padding_idx)  # type: ignore[no-untyped-call]
    return rows


def gradient(master: nn.Parameter) -> Tensor:
    """The master's gradient; zeros where there is none yet."""
    if master.grad is None:
        master.grad = torch.zeros_like(master)
    return master.grad


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, master: nn.Parameter, padding: int | None) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.master, ctx.padding = master, padding
        return nn.functional.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, d_rows: Tensor) -> tuple[None, None, None, None]:
        (ids,) = ctx.saved_tensors
        rows = d_rows.reshape(-1, d_rows.shape[-1]).float()
        if ctx.padding is not None:
            rows = rows.masked_fill(ids.reshape(-1, 1) == ctx.padding, 0.0)
        gradient(ctx.master).index_add_(0, ids.reshape(-1), rows)
        return None, None, None, None
