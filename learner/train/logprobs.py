"""Log-probabilities of given tokens without ever holding all logits: the head's matrix product, the softmax
and the gather in one autograd function, over chunks of scored positions."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

#: Logits that exist at the same time, whatever the vocabulary: 24 MiB of float32. Pieces of 32 MiB and more
#: are new memory from the system every time, and its page faults cost more than the arithmetic.
LOGITS = 128 * 49_152


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
    """A position has one output, so its whole derivative in `hidden` is one row, (head[token] − p·head)/T: it
    is made on the way there, from probabilities that are needed anyway, and no logits are computed again."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, tokens: Tensor, temperature: Tensor
    ) -> tuple[Tensor, Tensor]:
        needed = any(ctx.needs_input_grad)
        logprobs, entropies, normalisers = [], [], []
        rows_of = torch.empty_like(hidden) if needed else None
        for rows in _chunks(len(tokens), len(head)):
            logits = _logits(hidden[rows], head, temperature[rows])
            chances = logits.softmax(-1)
            normaliser = logits.amax(-1) - chances.amax(-1).log()
            logprobs.append(logits.gather(-1, tokens[rows, None])[:, 0] - normaliser)
            entropies.append(normaliser - torch.linalg.vecdot(chances, logits))
            normalisers.append(normaliser)
            if rows_of is not None:
                expected = chances.to(head.dtype) @ head
                rows_of[rows] = (head[tokens[rows]] - expected) / temperature[rows, None]
        entropy = torch.cat(entropies)
        ctx.save_for_backward(hidden, head, tokens, temperature, torch.cat(normalisers), rows_of)
        ctx.mark_non_differentiable(entropy)
        return torch.cat(logprobs), entropy

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _entropy: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        rows_of = ctx.saved_tensors[-1]
        d_hidden = (rows_of * grad[:, None]).to(rows_of.dtype)
        return d_hidden, _d_head(ctx, grad) if ctx.needs_input_grad[1] else None, None, None


def _d_head(ctx: Any, grad: Tensor) -> Tensor:
    """The head's gradient, for which alone the logits are computed again."""
    hidden, head, tokens, temperature, normaliser, _ = ctx.saved_tensors
    gradient = torch.zeros_like(head, dtype=torch.float32)
    for rows in _chunks(len(tokens), len(head)):
        scale = (grad[rows] / temperature[rows])[:, None]
        d_logits = _logits(hidden[rows], head, temperature[rows]).sub_(normaliser[rows, None]).exp_()
        d_logits.mul_(-scale)
        d_logits.scatter_add_(-1, tokens[rows, None], scale)
        gradient += d_logits.to(head.dtype).T @ hidden[rows]
    return gradient.to(head.dtype)


def _chunks(positions: int, vocabulary: int) -> Iterator[slice]:
    size = max(1, LOGITS // vocabulary)
    return (slice(start, start + size) for start in range(0, positions, size))


def _logits(hidden: Tensor, head: Tensor, temperature: Tensor) -> Tensor:
    """(n, V) float32, at the temperature."""
    return (hidden @ head.T).float().div_(temperature[:, None])
