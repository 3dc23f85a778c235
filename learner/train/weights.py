"""What is trained: float32 masters, and the model that computes with them, rounded as engines hold them.

Small updates get lost in bfloat16 weights, so the optimizer only sees masters.

Low-rank adapters: y = W·x + (α/r)·B·A·x. A and B are float32 masters, rounded as engines hold them.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dukou.settings.learning import LossSettings, TrainerSettings
from learner.train import layers
from learner.train.model import HfModel, served_dtype


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


class Weights(ABC):
    """A model and its masters, by name. A backward pass adds its gradients to the masters' `grad`."""

    model: HfModel
    masters: dict[str, nn.Parameter]

    @abstractmethod
    def spread(self) -> None:
        """After the masters changed: the model computes with them."""

    @abstractmethod
    def reference(self) -> AbstractContextManager[HfModel]:
        """The base model, as version 0 is. Raises RuntimeError where none is kept."""

    @abstractmethod
    def merged(self) -> dict[str, Tensor]:
        """Every weight of the model under its name in the base's files, in the model's dtype."""

    @abstractmethod
    def as_merged(self) -> AbstractContextManager[HfModel]:
        """The model that an engine loads from `merged`, with the rounding that this has."""

    def load(self, masters: Mapping[str, Tensor]) -> None:
        """Puts stored masters in place. Raises ValueError where they have other names or shapes."""
        if {n: m.shape for n, m in masters.items()} != {n: m.shape for n, m in self.masters.items()}:
            raise ValueError(
                "the checkpoint holds other weights than this trainer trains: "
                "were trainer.method, lora_rank or lora_targets changed?"
            )
        with torch.no_grad():
            for name, master in self.masters.items():
                master.copy_(masters[name])
        self.spread()

    def head_gradient(self) -> Tensor | None:
        """Where the head's gradient is gathered, (V, D) float32; None where the head is not trained."""
        return None

    def clear(self) -> None:
        """Drops all gradients."""
        self.model.zero_grad(set_to_none=True)
        for master in self.masters.values():
            master.grad = None


class LoraWeights(Weights):
    """The base stays; the masters are the adapters' A and B, which the model uses as they are."""

    def __init__(self, model: HfModel, settings: TrainerSettings) -> None:
        self.model = model
        self.adapters = attach(
            model,
            settings.lora_targets,
            settings.lora_rank,
            settings.lora_alpha,
            settings.seed,
            served_dtype(model),
        )
        self.masters = {}
        for name, adapter in self.adapters.items():
            self.masters[f"{name}.lora_A"] = adapter.a
            self.masters[f"{name}.lora_B"] = adapter.b

    def spread(self) -> None:
        """Nothing to do: the forward pass begins at the masters."""

    @contextmanager
    def reference(self) -> Iterator[HfModel]:
        with switched_off(self.adapters):
            yield self.model

    def merged(self) -> dict[str, Tensor]:
        weights = {name.replace(".base.", "."): tensor for name, tensor in self.model.state_dict().items()}
        for name, adapter in self.adapters.items():
            weights[f"{name}.weight"] = adapter.merged()
            del weights[f"{name}.a"], weights[f"{name}.b"]
        return weights

    @contextmanager
    def as_merged(self) -> Iterator[HfModel]:
        kept = {name: adapter.base.weight.data for name, adapter in self.adapters.items()}
        for adapter in self.adapters.values():
            adapter.base.weight.data = adapter.merged()
        try:
            with switched_off(self.adapters):
                yield self.model
        finally:
            for name, adapter in self.adapters.items():
                adapter.base.weight.data = kept[name]


class FullWeights(Weights):
    """Every weight is trained. `with_reference` keeps a second, frozen copy of the base model."""

    def __init__(self, model: HfModel, *, with_reference: bool) -> None:
        self.model = model
        self.base = copy.deepcopy(model).requires_grad_(False) if with_reference else None
        self.masters = {
            name: nn.Parameter(parameter.detach().float().clone())
            for name, parameter in model.named_parameters()
        }
        for name, parameter in model.named_parameters():
            parameter.register_post_accumulate_grad_hook(partial(_hand_over, self.masters[name]))
        self._head = self._master_of(model.get_output_embeddings().weight)
        embedding = model.get_input_embeddings()
        layers.gather(embedding, self._master_of(embedding.weight))

    def _master_of(self, weight: Tensor) -> nn.Parameter:
        return next(self.masters[name] for name, own in self.model.named_parameters() if own is weight)

    def head_gradient(self) -> Tensor:
        return layers.gradient(self._head)

    def spread(self) -> None:
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(self.masters[name].to(served_dtype(self.model)))

    @contextmanager
    def reference(self) -> Iterator[HfModel]:
        if self.base is None:
            raise RuntimeError("full training with neither a KL term nor a teacher keeps no base model")
        yield self.base

    def merged(self) -> dict[str, Tensor]:
        return dict(self.model.state_dict())

    @contextmanager
    def as_merged(self) -> Iterator[HfModel]:
        yield self.model


def _hand_over(master: nn.Parameter, parameter: Tensor) -> None:
    """Moves a gradient to its master the moment it is made: the model's own gradients never all exist."""
    gradient = parameter.grad
    if gradient is not None:
        master.grad = gradient.float() if master.grad is None else master.grad.add_(gradient)
        parameter.grad = None


def of(model: HfModel, settings: TrainerSettings, loss: LossSettings) -> Weights:
    """The masters that these settings train; beside full ones the base model, where the loss asks for it."""
    if settings.method == "lora":
        return LoraWeights(model, settings)
    return FullWeights(model, with_reference=loss.kl > 0 or loss.taught_by_base)
