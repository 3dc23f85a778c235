"""AdamW over the masters, with the settings of each step."""

from collections.abc import Iterable

from torch import nn
from torch.optim import AdamW, Optimizer

from dukou.settings.learning import TrainerSettings


def adamw(masters: Iterable[nn.Parameter]) -> Optimizer:
    """The optimizer of fresh masters; its rates come with every step."""
    return AdamW(masters, fused=True)


def step(optimizer: Optimizer, settings: TrainerSettings) -> float:
    """Applies the masters' gradients once, at these settings; the learning rate that it did so with."""
    rate = learning_rate(settings, _taken(optimizer))
    for group in optimizer.param_groups:
        group.update(lr=rate, betas=settings.betas, eps=settings.epsilon, weight_decay=settings.weight_decay)
    optimizer.step()
    return rate


def learning_rate(settings: TrainerSettings, taken: int) -> float:
    """The rate of the step after `taken` ones: it rises in equal parts over `warmup_steps`, then is constant.

    Adam divides a gradient by its own size, of which it knows little at first: its first steps are as long as
    later ones and go where one batch's noise points.
    """
    return settings.learning_rate * min(1.0, (taken + 1) / max(settings.warmup_steps, 1))


def _taken(optimizer: Optimizer) -> int:
    """Steps behind the moments that the optimizer holds. They are in the checkpoint, so a resumed learner
    goes on with the same rates, and one that was rolled back to the base model warms up again."""
    state = next(iter(optimizer.state.values()), None)
    return 0 if state is None else int(state["step"])
