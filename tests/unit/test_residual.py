"""What a bfloat16 model rounds: norms once, sums of layers never."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from dukou.settings.learning import LossSettings, TrainerSettings
from learner.train import layers, model, weights

SMALL = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "initializer_range": 0.1,
}
IDS = (torch.arange(120) * 37 % 300)[None]


def saved(folder, kind, config, **more):
    torch.manual_seed(0)
    random = kind(config(**SMALL | more))
    for name, parameter in random.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    random.to(torch.bfloat16).save_pretrained(folder)
    return folder


def states(loaded):
    with torch.no_grad():
        return loaded.get_decoder()(input_ids=IDS, use_cache=False).last_hidden_state


@pytest.mark.parametrize(
    ("kind", "config"),
    [(LlamaForCausalLM, LlamaConfig), (Qwen3ForCausalLM, Qwen3Config)],
    ids=["llama", "qwen3"],
)
def test_a_bfloat16_model_is_nearer_to_exact_than_transformers_makes_it(tmp_path, kind, config):
    """G12. What is left is the products' own rounding, and that of the last state."""
    folder = saved(tmp_path, kind, config)
    ours = model.load(folder, torch.device("cpu"), torch.bfloat16)
    theirs, exact = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=dtype) for dtype in (torch.bfloat16, torch.float32)
    )
    truth = states(exact)
    off, before = ((states(each).float() - truth).norm() for each in (ours, theirs))
    assert ours.dtype == states(ours).dtype == torch.bfloat16
    assert off < 0.85 * before


@pytest.mark.parametrize(
    ("kind", "config"),
    [(Olmo2ForCausalLM, Olmo2Config), (Gemma2ForCausalLM, Gemma2Config)],
    ids=["multiplies-the-stream", "norms-of-its-own"],
)
def test_a_model_whose_layers_need_a_narrow_stream_keeps_it(tmp_path, kind, config):
    folder = saved(tmp_path, kind, config)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    before = states(plain)
    assert not layers.widen(plain)
    assert torch.equal(states(plain), before)


def test_the_gradient_through_a_wide_stream_is_that_of_float32_up_to_products(tmp_path):
    folder = saved(tmp_path, LlamaForCausalLM, LlamaConfig)
    found = []
    for exact in (False, True):
        loaded = model.load(folder, torch.device("cpu"), torch.float32 if exact else torch.bfloat16)
        trained = weights.of(loaded, TrainerSettings(method="full"), LossSettings(kl=0.0))
        states_of = loaded.get_decoder()(input_ids=IDS, use_cache=False).last_hidden_state
        (states_of.float() ** 2 * torch.linspace(-1, 1, 64)).sum().backward()
        found.append(
            torch.cat(
                [master.grad.flatten() for master in trained.masters.values() if master.grad is not None]
            )
        )
    assert torch.cosine_similarity(*found, dim=0) > 0.999


def test_a_norm_rounds_once():
    torch.manual_seed(0)
    layer = LlamaForCausalLM(LlamaConfig(**SMALL)).model.norm.to(torch.bfloat16)
    torch.nn.init.uniform_(layer.weight, 0.5, 1.5)
    x = torch.randn(50, 64)
    exact = layer.weight.double() * x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    assert layers.replace(layer) == 1
    with torch.no_grad():
        found = layer(x)
    assert found.dtype == torch.bfloat16
    assert (found == exact.to(torch.bfloat16)).float().mean() > 0.999
