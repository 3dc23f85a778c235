"""Our attention's gradient, LoRA's, and the embedding's are those that torch itself would give."""

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM

from dukou.settings.learning import LossSettings, TrainerSettings
from learner.train import attention, layers, model, weights
from tests.fakes.tiny_llama import VOCABULARY, save


@pytest.mark.parametrize("length", [2, 95, 96, 97, 250])
@pytest.mark.parametrize(("heads", "shared"), [(4, 4), (6, 2), (3, 1)])
def test_the_gradient_of_attention_is_torchs(length, heads, shared):
    torch.manual_seed(length)
    shapes = [(2, heads, length, 8), (2, shared, length, 8), (2, shared, length, 8)]
    inputs = [torch.randn(shape).requires_grad_() for shape in shapes]
    pull = torch.randn(shapes[0])
    found = []
    for out in (
        attention.causal(*inputs, 0.3),
        functional.scaled_dot_product_attention(*inputs, is_causal=True, scale=0.3, enable_gqa=True),
    ):
        found.append([out.detach(), *torch.autograd.grad((out * pull).sum(), inputs)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("bias", [True, False])
def test_the_gradient_of_an_adapted_layer_is_that_of_its_formula(bias):
    torch.manual_seed(0)
    base = torch.nn.Linear(12, 7, bias=bias).requires_grad_(False)
    layer = weights.LoraLinear(base, 3, 6.0, torch.Generator().manual_seed(0), torch.float32)
    torch.nn.init.normal_(layer.b)
    x, pull = torch.randn(2, 5, 12, requires_grad=True), torch.randn(2, 5, 7)
    found = []
    for y in (layer(x), base(x) + 2.0 * (x @ layer.a.T @ layer.b.T)):
        found.append([y.detach(), *torch.autograd.grad((y * pull).sum(), (x, layer.a, layer.b))])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_the_gradient_of_every_weight_is_that_of_the_model_as_transformers_loads_it(tmp_path, tied):
    folder = save(tmp_path, tied=tied)
    trained = weights.FullWeights(model.load(folder, torch.device("cpu")), with_reference=False)
    plain = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    ids = torch.randint(0, VOCABULARY, (1, 130), generator=torch.Generator().manual_seed(0))
    for _ in range(2):  # two micro-batches add up
        states = trained.model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[0, :-1]
        scored = model.score(
            states, model.head(trained.model), ids[0, 1:], torch.ones(129), trained.head_gradient()
        )
        scored.logprobs.mean().backward()
        logits = plain(input_ids=ids, use_cache=False).logits[0, :-1]
        logits.log_softmax(-1).gather(-1, ids[0, 1:, None]).mean().backward()
    expected = dict(plain.named_parameters())
    assert trained.masters.keys() == expected.keys()
    for name, master in trained.masters.items():
        torch.testing.assert_close(master.grad, expected[name].grad, atol=2e-6, rtol=1e-3)


def test_a_full_reference_model_is_not_changed_by_training(tmp_path):
    """Its embedding looks up its own rows, not those that are trained."""
    folder = save(tmp_path)
    trained = weights.of(
        model.load(folder, torch.device("cpu")), TrainerSettings(method="full"), LossSettings(kl=0.1)
    )
    with torch.no_grad():
        for master in trained.masters.values():
            master.add_(1.0)
    trained.spread()
    plain, ids = AutoModelForCausalLM.from_pretrained(folder), torch.arange(20)[None]
    with trained.reference() as base, torch.no_grad():
        torch.testing.assert_close(base(input_ids=ids).logits, plain(input_ids=ids).logits)


def test_a_norm_that_computes_something_else_is_left_alone():
    class FromOne(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.variance_epsilon = torch.nn.Parameter(torch.zeros(8)), 1e-6

        def forward(self, x):
            return (
                x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon) * (1 + self.weight)
            )

    assert layers.replace(torch.nn.Sequential(FromOne(), torch.nn.LayerNorm(8))) == 0


def test_every_norm_of_a_llama_is_ours_and_gives_its_bits(tmp_path):
    plain = AutoModelForCausalLM.from_pretrained(save(tmp_path))
    ids = torch.arange(60)[None]
    with torch.no_grad():
        before = plain(input_ids=ids).logits
        assert layers.replace(plain) == 2 * 2 + 1
        assert torch.equal(plain(input_ids=ids).logits, before)
