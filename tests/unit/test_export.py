"""Exports look exactly like the base, and nothing broken gets a folder."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from dukou.settings.learning import TrainerSettings
from learner.train import export, files, model
from learner.train.weights import FullWeights, LoraWeights
from tests.fakes.tiny_llama import save

BF16 = torch.bfloat16


def loaded(base):
    return model.load(base, torch.device("cpu"))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("method", ["lora", "full"])
def test_names_shapes_and_dtypes_are_the_bases(tmp_path, tied, method):
    base = save(tmp_path / "base", tied=tied, dtype=BF16)
    (base / "chat_template.jinja").write_text("hello")
    (base / "pytorch_model.bin").write_text("other weights")
    llama = loaded(base)
    weights = (
        LoraWeights(llama, TrainerSettings())
        if method == "lora"
        else FullWeights(llama, with_reference=False)
    )
    with torch.no_grad():
        for master in weights.masters.values():
            master += 0.05
    weights.spread()
    export.write_merged(tmp_path / "1", base, weights)
    old, new = (load_file(path / "model.safetensors") for path in (base, tmp_path / "1"))
    assert {n: (t.shape, t.dtype) for n, t in old.items()} == {n: (t.shape, t.dtype) for n, t in new.items()}
    assert not torch.equal(old["model.layers.1.mlp.up_proj.weight"], new["model.layers.1.mlp.up_proj.weight"])
    assert (tmp_path / "1" / "chat_template.jinja").read_text() == "hello"
    assert not (tmp_path / "1" / "pytorch_model.bin").exists()
    assert files.is_complete(tmp_path / "1")


def test_a_merged_weight_is_computed_in_float32(tmp_path):
    base = save(tmp_path / "base", dtype=BF16)
    weights = LoraWeights(loaded(base), TrainerSettings(lora_rank=4))
    with torch.no_grad():
        for master in weights.masters.values():
            master += 0.01 * torch.randn(master.shape, generator=torch.Generator().manual_seed(0))
    export.write_merged(tmp_path / "1", base, weights)
    name = "model.layers.0.self_attn.q_proj"
    adapter = weights.adapters[name]
    expected = load_file(base / "model.safetensors")[f"{name}.weight"].float() + 8 * adapter.b @ adapter.a
    assert torch.equal(load_file(tmp_path / "1" / "model.safetensors")[f"{name}.weight"], expected.to(BF16))


def test_tied_head_and_embedding_are_one_in_the_export(tmp_path):
    """W9 (b): the base's file holds both."""
    base = save(tmp_path / "base", tied=True)
    tensors = load_file(base / "model.safetensors")
    tensors[export.HEAD] = tensors[export.EMBEDDING].clone()
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    export.check_tied(base)
    weights = FullWeights(loaded(base), with_reference=False)
    with torch.no_grad():
        weights.masters[export.EMBEDDING].add_(1.0)
    weights.spread()
    export.write_merged(tmp_path / "1", base, weights)
    new = load_file(tmp_path / "1" / "model.safetensors")
    assert torch.equal(new[export.HEAD], new[export.EMBEDDING])
    assert not torch.equal(new[export.HEAD], tensors[export.HEAD])


def test_a_config_that_ties_what_differs_is_refused(tmp_path):
    """W9 (c)."""
    base = save(tmp_path / "base", tied=False)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    with pytest.raises(export.ExportError, match=r"lm_head\.weight"):
        export.check_tied(base)


@pytest.mark.parametrize("broken", ["not finite", "no weight", "in the base"])
def test_a_broken_export_is_named_and_leaves_no_folder(tmp_path, broken):
    base = save(tmp_path / "base")
    weights = FullWeights(loaded(base), with_reference=False)
    tensors = load_file(base / "model.safetensors")
    if broken == "not finite":
        weights.masters["model.norm.weight"].data[3] = float("nan")
        weights.spread()
    elif broken == "no weight":
        save_file({**tensors, "model.extra.weight": torch.zeros(1)}, base / "model.safetensors")
    else:
        save_file({**tensors, "model.norm.weight": torch.zeros(3)}, base / "model.safetensors")
    with pytest.raises(export.ExportError, match=broken):
        export.write_merged(tmp_path / "1", base, weights)
    assert os.listdir(tmp_path) == ["base"]


def test_a_folder_without_safetensors_is_refused(tmp_path):
    with pytest.raises(export.ExportError, match="no safetensors"):
        export.weight_files(tmp_path)


def test_what_a_crash_left_is_not_complete_and_is_replaced(tmp_path):
    left = tmp_path / ".7.1234.partial"
    left.mkdir()
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "old").touch()
    assert files.numbered(tmp_path) == {}
    with files.whole(tmp_path / "7") as beside:
        (beside / "new").touch()
    assert sorted(path.name for path in (tmp_path / "7").iterdir()) == [files.MARKER, "new"]
    assert not left.exists()


def test_expendable_is_all_but_the_newest_and_the_protected():
    assert files.expendable([1, 2, 3, 4, 5], 2, [2]) == [1, 3]
    assert files.expendable([1], 3, [9]) == []
