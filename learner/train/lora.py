"""Low-rank adapters: y = W·x + (α/r)·B·A·x. A and B are float32 masters, rounded as engines hold them."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class _Adapted(torch.autograd.Function):
    """Base and adapter at once: the second product is added to the first where it lies, on the way there and
    on the way back, and the frozen base costs no gradient of its own."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        a: Tensor,
        b: Tensor,
        scale: float,
        served: torch.dtype,
    ) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        a, b = a.to(served).to(x.dtype), (b * scale).to(served).to(x.dtype)
        down = rows @ a.T
        y = functional.linear(rows, weight, bias).addmm_(down, b.T)
        ctx.save_for_backward(rows, weight, a, b, down)
        ctx.scale, ctx.shape = scale, x.shape
        return y.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, a, b, down = ctx.saved_tensors
        d_y = d_out.reshape(-1, d_out.shape[-1])
        d_down = d_y @ b
        d_a = (d_down.T @ rows).float()
        d_b = (d_y.T @ down).float().mul_(ctx.scale)
        d_x = (d_y @ weight).addmm_(d_down, a).view(ctx.shape) if ctx.needs_input_grad[0] else None
        return d_x, None, None, d_a, d_b, None, None


class LoraLinear(nn.Module):
    """A frozen linear layer with an adapter beside it. B begins at 0, so a new adapter changes nothing.
    `served` is the dtype that engines hold the weights in."""

    def __init__(
        self, base: nn.Linear, rank: int, alpha: float, generator: torch.Generator, served: torch.dtype
    ) -> None:
        super().__init__()
        self.base = base
        self.served = served
        self.scale = alpha / rank
        self.on = True
        bound = 1 / math.sqrt(base.in_features)
        a = torch.empty(rank, base.in_features).uniform_(-bound, bound, generator=generator)
        self.a = nn.Parameter(a.to(base.weight.device))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank, device=base.weight.device))

    def forward(self, x: Tensor) -> Tensor:
        if not self.on:
            plain: Tensor = self.base(x)
            return plain
        given = (self.base.weight, self.base.bias, self.a, self.b, self.scale, self.served)
        y: Tensor = _Adapted.apply(x, *given)  # type: ignore[no-untyped-call]
        return y

    def merged(self) -> Tensor:
        """W + (α/r)·B·A, (out, in): computed in float32, rounded as engines hold it, in the base's dtype."""
        with torch.no_grad():
            whole = self.base.weight.float() + self.scale * (self.b @ self.a)
            return whole.to(self.served).to(self.base.weight.dtype)


def attach(
    model: nn.Module, targets: Sequence[str], rank: int, alpha: float, seed: int, served: torch.dtype
) -> dict[str, LoraLinear]:
    """Puts an adapter on every linear layer whose last name is in `targets`; the rest is frozen.
    `served`: the dtype that engines hold the weights in.

    Returns them by full name, in the model's order. Raises ValueError for a target that names no layer, or
    one that engines do not serve an adapter for (embeddings, the head): left out silently, trainer and
    engine would be two different policies.
    """
    generator = torch.Generator().manual_seed(seed)
    model.requires_grad_(False)
    found = {name: module for name, module in model.named_modules() if name.rpartition(".")[2] in targets}
    _refuse_unservable(targets, found)
    adapters: dict[str, LoraLinear] = {}
    for name, module in found.items():
        assert isinstance(module, nn.Linear)
        parent, _, leaf = name.rpartition(".")
        adapters[name] = LoraLinear(module, rank, alpha, generator, served)
        setattr(model.get_submodule(parent), leaf, adapters[name])
    return adapters


def _refuse_unservable(targets: Sequence[str], found: dict[str, nn.Module]) -> None:
    missing = sorted(set(targets) - {name.rpartition(".")[2] for name in found})
    if missing:
        raise ValueError(f"trainer.lora_targets: the model has no layer named {', '.join(missing)}")
    wrong = sorted(
        name for name, module in found.items() if not isinstance(module, nn.Linear) or "." not in name
    )
    if wrong:
        raise ValueError(f"trainer.lora_targets: engines serve no adapter on {', '.join(wrong)}")


@contextmanager
def switched_off(adapters: dict[str, LoraLinear]) -> Iterator[None]:
    """The base model alone, for as long as the block lasts."""
    for adapter in adapters.values():
        adapter.on = False
    try:
        yield
    finally:
        for adapter in adapters.values():
            adapter.on = True
