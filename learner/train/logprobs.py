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
#: Rows of the head's gradient that are made and added at a time: they stay in the cache.
HEAD_ROWS = 4096


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Per scored position, float32: log-probability of the token, (N,), or of each of K tokens, (N, K), and
    entropy of the distribution, (N,)."""

    logprobs: Tensor
    entropy: Tensor  # without gradient


@dataclass(frozen=True, slots=True)
class TeacherScores:
    """A teacher's scores per scored position, without gradient: log-probability of the token, (N,), and the
    ids and log-probabilities of the K likeliest tokens there, (N, K). NaN (and id 0) where no teacher scored
    the position."""

    logprobs: Tensor
    likeliest: Tensor
    likely: Tensor


def score(
    hidden: Tensor, head: Tensor, tokens: Tensor, temperature: Tensor, head_gradient: Tensor | None = None
) -> TokenScores:
    """Log-softmax(hidden·headᵀ / temperature) at `tokens`.

    hidden (N, D): the state at the position *before* each token; head (V, D); tokens (N,) or (N, K) int64;
    temperature (N,) float32, above 0. Differentiable in `hidden` and `head`. With `head_gradient`, (V, D)
    float32, the head's gradient is added to it where it is made and goes no other way.
    """
    columns = tokens.view(len(tokens), -1)
    logprobs, entropy = _Score.apply(hidden, head, columns, temperature, head_gradient)  # type: ignore[no-untyped-call]
    return TokenScores(logprobs.view(tokens.shape), entropy)


@torch.no_grad()
def score_with_likeliest(
    hidden: Tensor, head: Tensor, tokens: Tensor, temperature: Tensor, count: int
) -> TeacherScores:
    """As `score`, tokens (N,), and the `count` likeliest tokens of each position, by falling probability."""
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for rows in _chunks(len(tokens), len(head)):
        every = _logits(hidden[rows], head, tokens[rows, None], temperature[rows]).log_softmax(-1)
        likely, likeliest = every.topk(count, -1)
        found.append((every.gather(-1, tokens[rows, None])[:, 0], likeliest, likely))
    logprobs, likeliest, likely = (torch.cat(pieces) for pieces in zip(*found, strict=True))
    return TeacherScores(logprobs, likeliest, likely)


class _Score(torch.autograd.Function):
    """The derivative in `hidden` is Σₖ gₖ·(head[tokenₖ] − p·head)/T. What is dear of it, p·head, is made on
    the way there, from probabilities that are needed anyway, and no logits are computed again."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        tokens: Tensor,
        temperature: Tensor,
        head_gradient: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropies, normalisers = [], [], []
        expected = torch.empty_like(hidden) if any(ctx.needs_input_grad) else None
        for rows in _chunks(len(tokens), len(head)):
            logits = _logits(hidden[rows], head, tokens[rows], temperature[rows])
            chances = logits.softmax(-1)
            normaliser = logits.amax(-1) - chances.amax(-1).log()
            logprobs.append(logits.gather(-1, tokens[rows]) - normaliser[:, None])
            entropies.append(normaliser - torch.linalg.vecdot(chances, logits))
            normalisers.append(normaliser)
            if expected is not None:
                expected[rows] = chances.to(head.dtype) @ head
        entropy = torch.cat(entropies)
        ctx.save_for_backward(hidden, head, tokens, temperature, torch.cat(normalisers), expected)
        ctx.mark_non_differentiable(entropy)
        ctx.head_gradient = head_gradient
        return torch.cat(logprobs), entropy

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _entropy: Tensor) -> tuple[Tensor | None, ...]:
        _, head, tokens, temperature, _, expected = ctx.saved_tensors
        grad = grad / temperature[:, None]
        d_hidden = torch.empty_like(expected)
        for rows in _chunks(len(tokens), tokens.shape[1] * head.shape[1]):
            given = grad[rows, :, None] * head[tokens[rows]]
            d_hidden[rows] = given.sum(1) - grad[rows].sum(-1, keepdim=True) * expected[rows]
        return d_hidden, _d_head(ctx, grad) if ctx.needs_input_grad[1] else None, None, None, None


def _d_head(ctx: Any, grad: Tensor) -> Tensor | None:
    """The head's gradient, for which alone the logits are computed again; None where it went elsewhere.
    `grad` (N, K) is that of the logits, already divided by the temperature."""
    hidden, head, tokens, temperature, normaliser, _ = ctx.saved_tensors
    given: Tensor | None = ctx.head_gradient
    gradient = torch.zeros_like(head, dtype=torch.float32) if given is None else given
    for rows in _chunks(len(tokens), len(head)):
        d_logits = (
            _logits(hidden[rows], head, tokens[rows], temperature[rows]).sub_(normaliser[rows, None]).exp_()
        )
        d_logits.mul_(-grad[rows].sum(-1, keepdim=True))
        d_logits.scatter_add_(-1, tokens[rows], grad[rows])
        d_logits = d_logits.to(head.dtype)
        for start in range(0, len(head), HEAD_ROWS):
            some = slice(start, start + HEAD_ROWS)
            gradient[some] += d_logits[:, some].T @ hidden[rows]
    return gradient.to(head.dtype) if given is None else None


def _chunks(positions: int, width: int) -> Iterator[slice]:
    size = max(1, LOGITS // width)
    return (slice(start, start + size) for start in range(0, positions, size))


def _logits(hidden: Tensor, head: Tensor, tokens: Tensor, temperature: Tensor) -> Tensor:
    """(n, V) float32, at the temperature. The logit of each position's own token, tokens[:, 0], is not
    rounded to bfloat16 like the others: that is most of what the head adds to the engine's difference."""
    logits = (hidden @ head.T).float()
    own = tokens[:, :1]
    logits.scatter_(-1, own, torch.linalg.vecdot(hidden.float(), head[own[:, 0]].float())[:, None])
    return logits.div_(temperature[:, None])
