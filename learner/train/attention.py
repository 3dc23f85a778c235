"""Causal attention for training on a CPU: torch's own forward pass, and a backward pass in matrix products.

torch's backward kernel for CPUs takes up to twice the time of the products that it is made of. Here they are
a block of queries against all keys that it may see, so the work stays half of a square and memory linear in
the length: the probabilities are made again from the forward pass's normalisers, as flash attention does.

In a row that branches (`samples.py`) a token sees spans of earlier ones and its own piece. Which
pieces there are comes in the place of a mask: four dimensions pass through transformers as they are.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from learner.train.samples import RowPiece

Span: TypeAlias = tuple[int, int]

NAME = "dukou"
#: Queries of a block. Small ones skip more of what the causal mask hides, and stay in the cache.
BLOCK = 96


def register() -> str:
    """Makes this attention known to transformers; returns the name that a model is loaded with."""
    AttentionInterface.register(NAME, _forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    return NAME


def as_mask(pieces: Sequence[RowPiece]) -> Tensor:
    """What a row's pieces are as an attention mask: (1, 1, pieces, 2)."""
    return torch.tensor([[[(piece.start, piece.after) for piece in pieces]]])


def causal(
    query: Tensor, key: Tensor, value: Tensor, scale: float, pieces: Sequence[RowPiece] = (RowPiece(0, 0),)
) -> Tensor:
    """Causal attention, (B, H, L, D), of query (B, H, L, D) over key and value (B, KV, L, D); H is a multiple
    of KV, and heads next to each other share keys. With several `pieces`, each token sees only what comes
    before it in its own sample."""
    views = list(_views(pieces, query.shape[2]))
    out: Tensor = _Causal.apply(query, key, value, scale, views)  # type: ignore[no-untyped-call]
    return out


def _views(pieces: Sequence[RowPiece], length: int) -> Iterator[tuple[Span, list[Span]]]:
    """Each piece as a span of the row, and the spans before it that all its tokens see."""
    path: list[Span] = []
    ends = [*(piece.start for piece in pieces[1:]), length]
    for piece, end in zip(pieces, ends, strict=True):
        past, left = [], piece.after
        for first, last in path:
            if left > 0:
                past.append((first, min(last, first + left)))
            left -= last - first
        yield (piece.start, end), past
        path = [*past, (piece.start, end)]


def _forward(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """As transformers calls it; (B, L, H, D) out. What is not plain causal attention with a gradient, of
    heads of one size, on a CPU, goes to torch's own. Where the residual stream is float32, queries and keys
    come rotated in float32 as well, and are rounded here."""
    query, key = query.to(value.dtype), key.to(value.dtype)
    scale = options.get("scaling") or query.shape[-1] ** -0.5
    if mask is not None and mask.dtype == torch.int64:
        pieces = [RowPiece(*piece) for piece in mask[0, 0].tolist()]
        return causal(query, key, value, scale, pieces).transpose(1, 2), None
    plain = mask is None and not options.get("dropout") and options.get("position_bias") is None
    whole = query.shape[2:] == key.shape[2:] == value.shape[2:] and query.shape[2] > 1
    trained = query.requires_grad and query.device.type == "cpu"
    if plain and whole and trained and options.get("is_causal") is not False:
        return causal(query, key, value, scale).transpose(1, 2), None
    out: Tensor = sdpa_attention_forward(module, query, key, value, mask, **options)[0]
    return out, None


class _Causal(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        views: Sequence[tuple[Span, list[Span]]],
    ) -> Tensor:
        found = [_attend(query, key, value, scale, own, past) for own, past in views]
        if len(found) == 1:
            out, normalisers = found[0]
        else:
            out, normalisers = (torch.cat(parts, dim=2) for parts in zip(*found, strict=True))
        ctx.save_for_backward(query, key, value, out, normalisers)
        ctx.scale, ctx.views = scale, views
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        """With P = softmax(S), S = scale·QKᵀ: dV = Pᵀ·dO, dS = P∘(dO·Vᵀ − rowsum(dO∘O)), dQ = scale·dS·K,
        dK = scale·dSᵀ·Q."""
        query, key, value, out, normalisers = ctx.saved_tensors
        batch, heads, length, size = query.shape
        groups = (batch * key.shape[1], heads // key.shape[1], length)
        keys, values = (x.reshape(groups[0], length, size) for x in (key, value))
        queries, outward = ((x.reshape(*groups, size)) for x in (query * ctx.scale, d_out))
        normalisers = normalisers.reshape(groups)
        means = torch.linalg.vecdot(outward.float(), out.reshape(*groups, size).float())
        d_query = torch.zeros_like(queries)
        d_key, d_value = (torch.zeros(x.shape, dtype=torch.float32) for x in (keys, values))
        for start, end, first, last in _blocks(ctx.views):
            q, d_o = (x[:, :, start:end].reshape(groups[0], -1, size) for x in (queries, outward))
            n, m = (x[:, :, start:end].reshape(groups[0], -1, 1) for x in (normalisers, means))
            chances = (q @ keys[:, first:last].mT).sub(n).exp_()
            if last > start:
                chances.view(groups[0], -1, end - start, last - first)[..., start - first :].tril_()
            d_value[:, first:last] += chances.to(q.dtype).mT @ d_o
            d_scores = (d_o @ values[:, first:last].mT).sub(m).mul_(chances).to(q.dtype)
            d_query[:, :, start:end] += (d_scores @ keys[:, first:last]).view(*groups[:2], -1, size)
            d_key[:, first:last] += d_scores.mT @ q
        d_query = d_query.mul_(ctx.scale).view(query.shape)
        d_key, d_value = d_key.to(key.dtype).view(key.shape), d_value.to(value.dtype).view(value.shape)
        return d_query, d_key, d_value, None, None


def _attend(
    query: Tensor, key: Tensor, value: Tensor, scale: float, own: Span, past: Sequence[Span]
) -> tuple[Tensor, Tensor]:
    """A piece's tokens over those before them in the piece, and over all of `past`: (B, H, piece, D), and the
    normalisers, (B, H, piece)."""
    # The only operation of torch that gives the normalisers as well.
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    queries = query[:, :, slice(*own)]
    out, normaliser = kernel(
        queries, key[:, :, slice(*own)], value[:, :, slice(*own)], 0.0, True, scale=scale
    )
    for span in past:
        more, beside = kernel(queries, key[:, :, slice(*span)], value[:, :, slice(*span)], 0.0, scale=scale)
        both = torch.logaddexp(normaliser, beside)
        out = out * (normaliser - both).exp()[..., None] + more * (beside - both).exp()[..., None]
        normaliser = both
    return out.to(query.dtype), normaliser


def _blocks(views: Sequence[tuple[Span, list[Span]]]) -> Iterator[tuple[int, int, int, int]]:
    """Blocks of queries, each with one span of keys that it sees; the last of them ends with the block."""
    for (start, end), past in views:
        for begin in range(start, end, BLOCK):
            stop = min(begin + BLOCK, end)
            for first, last in [*past, (start, stop)]:
                yield begin, stop, first, last
