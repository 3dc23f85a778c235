"""Causal attention for training on a CPU: torch's own forward pass, and a backward pass in matrix products.

torch's backward kernel for CPUs takes up to twice the time of the products that it is made of. Here they are
a block of queries against all keys that it may see, so the work stays half of a square and memory linear in
the length: the probabilities are made again from the forward pass's normalisers, as flash attention does.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "dukou"
#: Queries of a block. Small ones skip more of what the causal mask hides, and stay in the cache.
BLOCK = 96


def register() -> str:
    """Makes this attention known to transformers; returns the name that a model is loaded with."""
    AttentionInterface.register(NAME, _forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    return NAME


def causal(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Causal attention, (B, H, L, D), of query (B, H, L, D) over key and value (B, KV, L, D); H is a multiple
    of KV, and heads next to each other share keys."""
    out: Tensor = _Causal.apply(query, key, value, scale)  # type: ignore[no-untyped-call]
    return out


def _forward(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """As transformers calls it; (B, L, H, D) out. What is not plain causal attention with a gradient, of
    heads of one size, goes to torch's own."""
    plain = mask is None and not options.get("dropout") and options.get("position_bias") is None
    whole = query.shape[2:] == key.shape[2:] == value.shape[2:] and query.shape[2] > 1
    if plain and whole and query.requires_grad and options.get("is_causal") is not False:
        scale = options.get("scaling") or query.shape[-1] ** -0.5
        return causal(query, key, value, scale).transpose(1, 2), None
    out: Tensor = sdpa_attention_forward(module, query, key, value, mask, **options)[0]
    return out, None


class _Causal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        # The only operation of torch that gives the normalisers as well, (B, H, L).
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, normalisers = kernel(query, key, value, 0.0, True, scale=scale)
        ctx.save_for_backward(query, key, value, out, normalisers)
        ctx.scale = scale
        result: Tensor = out
        return result

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """With P = softmax(S), S = scale·QKᵀ: dV = Pᵀ·dO, dS = P∘(dO·Vᵀ − rowsum(dO∘O)), dQ = scale·dS·K,
        dK = scale·dSᵀ·Q."""
        query, key, value, out, normalisers = ctx.saved_tensors
        batch, heads, length, size = query.shape
        groups = (batch * key.shape[1], heads // key.shape[1], length)
        keys, values = (x.reshape(groups[0], length, size) for x in (key, value))
        queries, outward = ((x.reshape(*groups, size)) for x in (query * ctx.scale, d_out))
        normalisers = normalisers.reshape(groups)
        means = torch.linalg.vecdot(outward.float(), out.reshape(*groups, size).float())
        d_query = torch.empty_like(queries)
        d_key, d_value = (torch.zeros(x.shape, dtype=torch.float32) for x in (keys, values))
        for start in range(0, length, BLOCK):
            end = min(start + BLOCK, length)
            q, d_o = (x[:, :, start:end].reshape(groups[0], -1, size) for x in (queries, outward))
            n, m = (x[:, :, start:end].reshape(groups[0], -1, 1) for x in (normalisers, means))
            chances = (q @ keys[:, :end].mT).sub(n).exp_()
            chances.view(groups[0], -1, end - start, end)[..., start:].tril_()
            d_value[:, :end] += chances.to(q.dtype).mT @ d_o
            d_scores = (d_o @ values[:, :end].mT).sub(m).mul_(chances).to(q.dtype)
            d_query[:, :, start:end] = (d_scores @ keys[:, :end]).view(*groups[:2], -1, size)
            d_key[:, :end] += d_scores.mT @ q
        d_query = d_query.mul_(ctx.scale).view(query.shape)
        return d_query, d_key.to(key.dtype).view(key.shape), d_value.to(value.dtype).view(value.shape), None
