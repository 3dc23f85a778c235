"""Checksums of an engine's tensors, computed from a checkpoint's files; values that are no numbers."""

import hashlib
import struct
from pathlib import Path

import pytest

from gateway.reconcile.checkpoint import Tensor, is_finite, stored
from gateway.reconcile.compare import Agreement, compare_checksums, expected, parts
from tests.fakes.models import write_tensors

ATTENTION = "model.layers.0.self_attn"
NAMES = [f"{ATTENTION}.{module}_proj.weight" for module in "qkvo"] + ["model.embed_tokens.weight"]


def test_a_fused_tensor_is_its_parts_in_the_engines_order() -> None:
    assert parts(f"{ATTENTION}.qkv_proj.weight", NAMES, tied=True) == tuple(NAMES[:3])
    assert parts(f"{ATTENTION}.o_proj.weight", NAMES, tied=True) == (NAMES[3],)
    assert parts(f"{ATTENTION}.qkv_proj.weight", NAMES[1:], tied=True) == ()
    assert parts("model.rotary.cache", NAMES, tied=True) == ()


def test_a_tied_head_is_the_embedding_whatever_the_files_say() -> None:
    assert parts("lm_head.weight", [*NAMES, "lm_head.weight"], tied=True) == ("model.embed_tokens.weight",)
    assert parts("lm_head.weight", NAMES, tied=False) == ()


def test_the_checksum_is_taken_over_the_joined_bytes(tmp_path: Path) -> None:
    shape = Tensor("BF16", (2, 2))
    write_tensors(tmp_path / "model.safetensors", dict.fromkeys(NAMES, shape), fill=3)
    name = f"{ATTENTION}.qkv_proj.weight"
    sums = expected([name, "unknown"], stored(tmp_path), tied=True)
    assert sums == {name: hashlib.sha256(bytes([3]) * 24).hexdigest()[:16]}


def test_an_agreement_counts_and_names_the_first_that_differs() -> None:
    wanted = {"b": "2", "a": "1", "c": "3"}
    assert compare_checksums(wanted, [wanted | {"extra": "9"}]) == Agreement(3, 0, None)
    assert compare_checksums(wanted, [{"a": "1", "b": "x"}]) == Agreement(1, 2, "b")
    assert compare_checksums(wanted, [wanted, wanted]) is None  # sliced over two ranks


@pytest.mark.parametrize(
    ("dtype", "word"),
    [
        ("BF16", b"\x80\x7f"),
        ("BF16", b"\xc0\xff"),
        ("F16", b"\x00\x7c"),
        ("F32", struct.pack("<f", float("nan"))),
    ],
)
def test_nan_and_infinity_are_found_in_the_bytes(dtype: str, word: bytes) -> None:
    assert not is_finite(dtype, bytes(8) + word + bytes(len(word)))
    assert is_finite(dtype, bytes(16))


def test_the_largest_numbers_are_finite() -> None:
    assert is_finite("BF16", b"\x7f\x7f\x7f\xff")
    assert is_finite("F16", b"\xff\x7b")
    assert is_finite("F32", struct.pack("<2f", 3.4e38, -3.4e38))
