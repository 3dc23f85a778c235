"""Stands in for sgl_kernel, which has CUDA builds only.

With SGLANG_USE_CPU_ENGINE=1 SGLang imports some `*_cpu` names from here at module level. Only speculative
decoding and AMX kernels call them. `torch.ops.sgl_kernel.convert_weight_packed` stays undefined, so SGLang's
AMX check says no and every layer takes torch's own path.
"""

from collections.abc import Callable
from typing import Any, NoReturn

__version__ = "0.0.0+dukou"


def assign_req_to_token_pool_cpu(
    req_pool_indices: Any,
    req_to_token: Any,
    start_offset: Any,
    end_offset: Any,
    out_cache_loc: Any,
    pool_len: int,
) -> None:
    """Writes the cache slots of each request's new tokens, [sum(end - start)], into its row of the table."""
    position = 0
    rows = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    for row, start, end in rows:
        slots = out_cache_loc[position : position + end - start]
        req_to_token[row, start:end] = slots.to(req_to_token.dtype)
        position += end - start


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if not name.endswith("_cpu"):
        raise AttributeError(name)

    def absent(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} has no CPU build")

    absent.__name__ = name
    return absent
