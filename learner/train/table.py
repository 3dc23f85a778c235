"""The embedding's gradient, row by row into its master: a dense one in the model's dtype, made for every
micro-batch, is as large as the vocabulary, nearly all zeros, and rounds what many micro-batches add up to."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


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
