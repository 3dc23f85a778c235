import pytest
import torch
from safetensors.torch import load_file

from dukou.settings.learning import LossSettings, TrainerSettings
from learner.train import export, model, weights
from learner.train.weights import FullWeights, LoraWeights, of
from tests.fakes.tiny_llama import save

TARGETS = ["q_proj", "down_proj"]
IDS = torch.arange(12)[None]


@pytest.fixture
def llama(tmp_path):
    return model.load(save(tmp_path / "base"), torch.device("cpu"))


def logits(llama):
    with torch.no_grad():
        return llama(input_ids=IDS).logits


def stir(weights):
    with torch.no_grad():
        for number, master in enumerate(weights.masters.values()):
            master += 0.02 * torch.randn(master.shape, generator=torch.Generator().manual_seed(number))


def test_a_new_adapter_changes_nothing_and_trains_only_itself(llama):
    before = logits(llama)
    adapters = weights.attach(llama, TARGETS, 4, 8, seed=0, served=torch.float32)
    assert torch.equal(logits(llama), before)
    trainable = {name for name, p in llama.named_parameters() if p.requires_grad}
    assert trainable == {f"{name}.{leaf}" for name in adapters for leaf in "ab"}
    assert len(adapters) == 4


@pytest.mark.parametrize(
    ("targets", "named"),
    [
        (["q_proj", "gate_prj"], "gate_prj"),
        (["q_proj", "lm_head"], "lm_head"),
        (["embed_tokens"], "embed_tokens"),
        (["mlp"], "mlp"),
    ],
)
def test_a_target_that_engines_do_not_serve_is_refused_by_name(llama, targets, named):
    """G22."""
    with pytest.raises(ValueError, match=named):
        weights.attach(llama, targets, 4, 8, seed=0, served=torch.float32)


def test_switched_off_it_is_the_base_model_again(llama):
    before = logits(llama)
    weights = LoraWeights(llama, TrainerSettings(lora_targets=TARGETS, lora_rank=4))
    stir(weights)
    assert not torch.allclose(logits(llama), before)
    with weights.reference() as base:
        assert torch.equal(logits(base), before)
    assert not torch.allclose(logits(llama), before)


def test_merged_it_answers_as_with_the_adapter_beside(llama):
    weights = LoraWeights(llama, TrainerSettings(lora_targets=TARGETS, lora_rank=4))
    stir(weights)
    beside = logits(llama)
    with weights.as_merged() as merged:
        torch.testing.assert_close(logits(merged), beside, atol=1e-5, rtol=1e-4)
    assert torch.equal(logits(llama), beside)


def test_the_seed_decides_the_adapters(tmp_path):
    folder = save(tmp_path / "base")

    def first(seed):
        llama = model.load(folder, torch.device("cpu"))
        return next(iter(weights.attach(llama, TARGETS, 4, 8, seed=seed, served=torch.float32).values())).a

    assert torch.equal(first(1), first(1))
    assert not torch.equal(first(1), first(2))


def test_full_weights_keep_updates_that_bfloat16_would_lose(tmp_path):
    llama = model.load(save(tmp_path / "base", dtype=torch.bfloat16), torch.device("cpu"), torch.bfloat16)
    weights = FullWeights(llama, with_reference=False)
    name, master = next(iter(weights.masters.items()))
    start = master.detach().clone()
    with torch.no_grad():
        for _ in range(100):
            master += 1e-5
    weights.spread()
    torch.testing.assert_close(master, start + 1e-3)
    assert torch.equal(llama.get_parameter(name), master.to(torch.bfloat16))


@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_wider_computation_uses_the_merged_weights_that_engines_load(tmp_path, method):
    base = save(tmp_path / "base", dtype=torch.bfloat16)
    wide = model.load(base, torch.device("cpu"), torch.float32)
    trained = of(
        wide, TrainerSettings(method=method, lora_targets=TARGETS, lora_rank=4), LossSettings(kl=0.0)
    )
    stir(trained)
    trained.spread()
    export.write_merged(tmp_path / "merged", base, trained)
    loaded = model.load(tmp_path / "merged", torch.device("cpu"), torch.float32)
    with trained.as_merged() as merged:
        assert torch.equal(logits(loaded), logits(merged))


def test_a_wider_computation_uses_the_adapter_that_engines_load(tmp_path):
    base = save(tmp_path / "base", dtype=torch.bfloat16)
    settings = TrainerSettings(lora_targets=TARGETS, lora_rank=4)
    trained = LoraWeights(model.load(base, torch.device("cpu"), torch.float32), settings)
    stir(trained)
    before = logits(trained.model)
    export.write_adapter(tmp_path / "adapter", base, trained.adapters, settings)
    written = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in written.values()} == {torch.bfloat16}
    trained.load(
        {
            f"{name}.lora_{leaf}": written[f"base_model.model.{name}.lora_{leaf}.weight"].float()
            for name in trained.adapters
            for leaf in "AB"
        }
    )
    assert torch.equal(logits(trained.model), before)


@pytest.mark.parametrize(
    ("served", "device", "multiplies", "computes"),
    [
        (torch.bfloat16, "cpu", False, torch.float32),
        (torch.bfloat16, "cpu", True, torch.bfloat16),
        (torch.bfloat16, "cuda", False, torch.bfloat16),
        (torch.float32, "cpu", True, torch.float32),
    ],
)
def test_a_cpu_that_multiplies_no_bfloat16_computes_in_float32(served, device, multiplies, computes):
    assert model.compute_dtype(served, device, multiplies) == computes


def test_full_weights_add_up_gradients_in_float32(tmp_path):
    llama = model.load(save(tmp_path / "base", dtype=torch.bfloat16), torch.device("cpu"), torch.bfloat16)
    weights = FullWeights(llama, with_reference=False)
    parameter = llama.get_parameter("model.norm.weight")
    for gradient in (1.0, 1.0, 2**-9):
        (parameter * gradient).sum().backward()
    assert (weights.masters["model.norm.weight"].grad == 2 + 2**-9).all()
    assert parameter.grad is None


def test_full_weights_without_a_kl_term_have_no_reference(llama):
    with (
        pytest.raises(RuntimeError, match="keeps no base model"),
        FullWeights(llama, with_reference=False).reference(),
    ):
        pass
