"""What is trained: float32 masters, and the model that computes with them, rounded as engines hold them.

Small updates get lost in bfloat16 weights, so the optimizer only sees masters.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from dukou.settings.learning import LossSettings, TrainerSettings
from learner.train import lora, table
from learner.train.model import HfModel, served_dtype


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
        self.adapters = lora.attach(
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
        with lora.switched_off(self.adapters):
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
            with lora.switched_off(self.adapters):
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
        table.gather(embedding, self._master_of(embedding.weight))

    def _master_of(self, weight: Tensor) -> nn.Parameter:
        return next(self.masters[name] for name, own in self.model.named_parameters() if own is weight)

    def head_gradient(self) -> Tensor:
        return table.gradient(self._head)

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
