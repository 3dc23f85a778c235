"""Compares an engine's tensors with a checkpoint's by their checksums. Pure.

On a CPU an engine's checksum of a tensor is the first eight bytes of the SHA-256 of its numbers, so it can be
computed from the checkpoint's files. An engine fuses some tensors and slices them over ranks; what it hashes
on a GPU is its own. There nothing can be compared, and nothing is concluded.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gateway.reconcile.tensors import Stored

#: The engine's fused module → the checkpoint's modules, in the order in which their rows lie.
_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class Agreement:
    """How an engine's tensors compare with the checkpoint's."""

    same: int  # tensors
    other: int
    first_other: str | None  # by name


def parts(name: str, known: Iterable[str], *, tied: bool) -> tuple[str, ...]:
    """The checkpoint's tensors that make up an engine's tensor; () where it has none by these names."""
    there = frozenset(known)
    if tied and name == _HEAD:
        return (_EMBEDDING,) if _EMBEDDING in there else ()
    if name in there:
        return (name,)
    for fused, modules in _FUSED.items():
        if f".{fused}." in name:
            found = tuple(name.replace(f".{fused}.", f".{module}.") for module in modules)
            return found if set(found) <= there else ()
    return ()


def expected(names: Iterable[str], tensors: Mapping[str, Stored], *, tied: bool) -> dict[str, str]:
    """The checksums that an engine on a CPU has of these tensors of its own. Reads every byte."""
    sums = {}
    for name in names:
        found = parts(name, tensors, tied=tied)
        if found:
            digest = hashlib.sha256()
            for part in found:
                digest.update(tensors[part].read())
            sums[name] = digest.hexdigest()[:16]
    return sums


def compare(wanted: Mapping[str, str], ranks: Sequence[Mapping[str, str]]) -> Agreement | None:
    """`ranks`: the engine's own checksums. None where it slices its tensors over several ranks."""
    if len(ranks) != 1:
        return None
    others = sorted(name for name, checksum in wanted.items() if ranks[0].get(name) != checksum)
    return Agreement(len(wanted) - len(others), len(others), others[0] if others else None)
