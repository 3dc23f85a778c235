"""Log-probabilities of given tokens without ever holding all logits: the head's matrix product, the softmax
and the gather in one autograd function, over chunks of scored positions, computed again on the way back."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

#: Positions whose logits exist at the same time: 128 × 49,152 × 4 bytes are 24 MiB.
CHUNK = 128


@dataclass(frozen=True, slots=True)
class Scored:
    """Per scored position, shape (N,), float32: log-probability of the token, entropy of the distribution."""

    logprobs: Tensor
    entropy: Tensor  # without gradient


def score(hidden: Tensor, head: Tensor, tokens: Tensor, temperature: Tensor) -> Scored:
    """Log-softmax(hidden·headᵀ / temperature) at `tokens`.

    hidden (N, D): the state at the position *before* each token; head (V, D); tokens (N,) int64;
    temperature (N,) float32, above 0. Differentiable in `hidden` and `head`.
    """
    logprobs, entropy = _Score.apply(hidden, head, tokens, temperature)  # type: ignore[no-untyped-call]
    return Scored(logprobs, entropy)


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, tokens: Tensor, temperature: Tensor
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropies, normalisers = [], [], []
        for start in range(0, len(tokens), CHUNK):
            rows = slice(start, start + CHUNK)
            logits = _logits(hidden[rows], head, temperature[rows])
            normaliser = logits.logsumexp(-1)
            logprobs.append(logits.gather(-1, tokens[rows, None])[:, 0] - normaliser)
            chosen = logits.sub_(normaliser[:, None])
            entropies.append(-(chosen.exp() * chosen).sum(-1))
            normalisers.append(normaliser)
        entropy = torch.cat(entropies)
        ctx.save_for_backward(hidden, head, tokens, temperature, torch.cat(normalisers))
        ctx.mark_non_differentiable(entropy)
        return torch.cat(logprobs), entropy

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _entropy: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        hidden, head, tokens, temperature, normaliser = ctx.saved_tensors
        d_hidden = torch.empty_like(hidden)
        d_head = torch.zeros_like(head, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for start in range(0, len(tokens), CHUNK):
            rows = slice(start, start + CHUNK)
            scale = (grad[rows] / temperature[rows])[:, None]
            d_logits = _logits(hidden[rows], head, temperature[rows]).sub_(normaliser[rows, None]).exp_()
            d_logits.mul_(-scale)
            d_logits.scatter_add_(-1, tokens[rows, None], scale)
            narrow = d_logits.to(head.dtype)
            d_hidden[rows] = narrow @ head
            if d_head is not None:
                d_head += (narrow.T @ hidden[rows]).float()
        return d_hidden, None if d_head is None else d_head.to(head.dtype), None, None


def _logits(hidden: Tensor, head: Tensor, temperature: Tensor) -> Tensor:
    """(n, V) float32, at the temperature."""
    return (hidden @ head.T).float().div_(temperature[:, None])
