"""Two repairs that SGLang needs without a GPU, made when the module they belong to is first imported.

`dukou_cpu_shim.pth` loads this in every interpreter of the engine's environment, so also in SGLang's spawned
scheduler and detokenizer; it imports nothing heavy itself.
"""

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_kept: list[Any] = []  # a torch library ends with its last reference


def register_torchvision_ops() -> None:
    """torchvision's x86-64 wheels are CUDA builds, whose operators do not load beside a CPU torch; then its
    import fails because `torchvision::nms` does not exist. Declaring the two schemas is enough."""
    from torch import library

    make: Any = library.Library
    declared = make("torchvision", "DEF")
    for name in ("nms", "qnms"):
        declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(declared)


def forget_pinned_memory() -> None:
    """`sglang.srt.lora` asks for pinned memory whether or not there is a device to pin it for."""
    import torch

    if torch.cuda.is_available():
        return
    for name in ("tensor", "empty", "zeros", "ones", "full", "arange", "empty_like", "zeros_like"):
        setattr(torch, name, _without_pinning(getattr(torch, name)))
    setattr(torch.Tensor, "pin_memory", lambda self, *_, **__: self)  # noqa: B010  mypy: a method


def _without_pinning(make: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(make)
    def unpinned(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("pin_memory", None)
        return make(*args, **kwargs)

    return unpinned


class _AtFirstImport(MetaPathFinder):
    """Runs a repair just before its module is searched for; finds nothing itself."""

    def __init__(self, repairs: dict[str, Callable[[], None]]) -> None:
        self._repairs = repairs

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        repair = self._repairs.pop(name, None)
        if repair is not None:
            repair()
        return None


sys.meta_path.insert(
    0,
    _AtFirstImport({"torchvision": register_torchvision_ops, "sglang.srt.lora.layers": forget_pinned_memory}),
)
