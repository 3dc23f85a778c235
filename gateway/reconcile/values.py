"""Finds NaN and infinities in a checkpoint, from the bytes alone."""

from collections.abc import Mapping

import numpy as np

from gateway.reconcile.tensors import Stored

#: dtype → (unsigned integer of the same size, its exponent bits: all set in NaN and the infinities).
_EXPONENTS: dict[str, tuple[str, int]] = {
    "BF16": ("<u2", 0x7F80),
    "F16": ("<u2", 0x7C00),
    "F32": ("<u4", 0x7F80_0000),
    "F64": ("<u8", 0x7FF0_0000_0000_0000),
}


def values_problem(tensors: Mapping[str, Stored]) -> str | None:
    """The sentence that names a tensor with a value that is not finite; None: all are. Reads every byte."""
    for name, stored in tensors.items():
        if not is_finite(stored.tensor.dtype, stored.read()):
            return f"its tensor {name} holds a value that is not finite"
    return None


def is_finite(dtype: str, data: bytes) -> bool:
    """True also for a dtype that has no infinities."""
    if dtype not in _EXPONENTS or not data:
        return True
    word, exponent = _EXPONENTS[dtype]
    bits = np.frombuffer(data, dtype=word)
    return not bool(((bits & exponent) == exponent).any())
