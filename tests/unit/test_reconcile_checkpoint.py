"""What may reach an engine: tensor headers, names and shapes, probes."""

import json
import math
import struct
from pathlib import Path

import pytest

from dukou.store.versions import BadProbeError, ProbePrompt
from gateway.reconcile.checkpoint import (
    MARKER,
    BadCheckpointError,
    Tensor,
    UnreadableTensorsError,
    adapter_problem,
    check,
    full_problem,
    read_file,
    read_folder,
)
from gateway.reconcile.compare import compare, parse, vocabulary
from tests.fakes.models import BASE, write_model, write_tensors

EMBED = "model.embed_tokens.weight"
Q = "model.layers.0.self_attn.q_proj.weight"


def test_names_shapes_and_dtypes_come_from_the_header(tmp_path: Path) -> None:
    write_tensors(tmp_path / "model.safetensors", BASE)
    assert read_file(tmp_path / "model.safetensors") == BASE


def test_a_model_may_lie_in_several_files(tmp_path: Path) -> None:
    first, *rest = BASE
    write_tensors(tmp_path / "a.safetensors", {first: BASE[first]})
    write_tensors(tmp_path / "b.safetensors", {name: BASE[name] for name in rest})
    assert read_folder(tmp_path) == BASE


@pytest.mark.parametrize("kept", [0, 5, 40, -1])
def test_a_file_that_is_cut_short_is_refused(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "model.safetensors"
    write_tensors(path, BASE)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UnreadableTensorsError, match=r"cut short|should hold"):
        read_file(path)


@pytest.mark.parametrize("header", [b"[1]", b"{not", json.dumps({"t": {"dtype": "F32"}}).encode()])
def test_a_header_that_is_none_is_refused(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(UnreadableTensorsError, match="header"):
        read_file(path)


def test_a_misspelt_tensor_is_named() -> None:
    """W8."""
    ours = {name.replace("q_proj", "q_projX"): tensor for name, tensor in BASE.items()}
    problem = full_problem(ours, BASE, tied=True)
    assert (
        problem
        == f"it lacks the tensor {Q} and has {Q.replace('q_proj', 'q_projX')}, which the base model has not"
    )


def test_an_extra_tensor_is_named() -> None:
    problem = full_problem({**BASE, "model.extra": Tensor("BF16", (1,))}, BASE, tied=True)
    assert problem == "it has the tensor model.extra, which the base model has not"


@pytest.mark.parametrize("wrong", [Tensor("BF16", (4, 9)), Tensor("F32", BASE[Q].shape)])
def test_another_shape_or_dtype_is_named_with_both(wrong: Tensor) -> None:
    problem = full_problem({**BASE, Q: wrong}, BASE, tied=True)
    assert problem is not None
    assert Q in problem
    assert str(list(wrong.shape)) in problem


def test_a_tied_head_may_be_written_once_or_twice() -> None:
    """W9 (a), (b)."""
    with_head = {**BASE, "lm_head.weight": BASE[EMBED]}
    assert full_problem(BASE, BASE, tied=True) is None
    assert full_problem(with_head, BASE, tied=True) is None
    assert full_problem(BASE, with_head, tied=True) is None
    assert full_problem(BASE, with_head, tied=False) == "it lacks the tensor lm_head.weight"


def adapter(rank: int = 2, out: int = 8, into: int = 4) -> dict[str, Tensor]:
    stem = f"base_model.model.{Q.removesuffix('.weight')}"
    return {
        f"{stem}.lora_A.weight": Tensor("F32", (rank, into)),
        f"{stem}.lora_B.weight": Tensor("F32", (out, rank)),
    }


def test_an_adapter_of_the_base_models_shapes_fits() -> None:
    assert adapter_problem(adapter(), BASE, 2) is None


@pytest.mark.parametrize(
    ("ours", "rank", "says"),
    [
        (adapter(into=5), 2, "it should be [2, 4]"),
        (adapter(out=9), 2, "it should be [8, 2]"),
        (adapter(rank=3), 2, "it should be [2, 4]"),
        (dict(list(adapter().items())[:1]), 2, "lora_B"),
        ({"base_model.model.model.nothing.lora_A.weight": Tensor("F32", (2, 4))}, 2, "no weight"),
        ({}, 2, "no tensors"),
        (adapter(), None, "no rank"),
    ],
)
def test_an_adapter_that_would_crash_the_engine_is_refused(
    ours: dict[str, Tensor], rank: int | None, says: str
) -> None:
    problem = adapter_problem(ours, BASE, rank)
    assert problem is not None
    assert says in problem


def test_an_adapter_of_half_a_fused_weight_is_refused() -> None:
    v = Q.replace("q_proj", "v_proj")
    base = {**BASE, v: BASE[Q]}
    both = adapter() | {name.replace("q_proj", "v_proj"): tensor for name, tensor in adapter().items()}
    assert adapter_problem(both, base, 2) is None
    problem = adapter_problem(adapter(), base, 2)
    assert problem is not None
    assert "comes without base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight" in problem


def test_a_whole_checkpoint_passes_and_one_without_its_marker_does_not(tmp_path: Path) -> None:
    base, made = write_model(tmp_path / "base"), write_model(tmp_path / "1")
    check(made, "full", base)
    (made / MARKER).unlink()
    with pytest.raises(BadCheckpointError, match="not written to its end"):
        check(made, "full", base)


def test_a_checkpoint_whose_folder_is_gone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpointError, match="marker"):
        check(tmp_path / "gone", "full", write_model(tmp_path / "base"))


def test_a_probe_with_an_id_outside_the_vocabulary_never_reaches_the_engine() -> None:
    assert vocabulary(BASE) == 16
    probe = {"prompts": [{"ids": [1, 16], "logprobs": [-1.0]}]}
    with pytest.raises(BadProbeError, match="16"):
        parse(probe, 16)
    assert parse(probe, 17) == [ProbePrompt((1, 16), (-1.0,))]


@pytest.mark.parametrize(
    "probe",
    [{}, {"prompts": []}, {"prompts": [{"ids": [1, 2]}]}, {"prompts": [{"ids": [1], "logprobs": []}]}],
)
def test_a_malformed_probe_is_refused(probe: dict[str, object]) -> None:
    with pytest.raises(BadProbeError):
        parse(probe, None)


def test_a_difference_is_taken_over_all_tokens_of_all_prompts() -> None:
    prompts = [ProbePrompt((1, 2, 3), (-1.0, -2.0)), ProbePrompt((1, 2), (-3.0,))]
    difference = compare(prompts, [[-1.0, -2.5], [-4.0]])
    assert (difference.mean, difference.max) == (0.5, 1.0)


@pytest.mark.parametrize("missing", [None, math.nan])
def test_a_value_that_is_missing_or_nan_makes_the_difference_infinite(missing: float | None) -> None:
    assert compare([ProbePrompt((1, 2), (-1.0,))], [[missing]]).mean == math.inf
