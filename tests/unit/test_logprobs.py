"""Log-probabilities: the right token, the right temperature, the same number however they are computed."""

import math
import uuid

import numpy as np
import pytest
import torch

from learner.train import logprobs, model
from learner.train.samples import Sample
from tests.fakes.tiny_llama import VOCABULARY, save


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return model.load(save(tmp_path_factory.mktemp("base")), torch.device("cpu"))


def sample(length, prompt_length, *, temperature=1.0, seed=0):
    ids = np.random.default_rng(seed).integers(0, VOCABULARY, length)
    rollout = np.zeros(length - prompt_length, np.float32)
    return Sample(uuid.UUID(int=seed), ids, prompt_length, rollout, temperature, 0.0, 0.0, 0, False)


def naive(llama, s):
    logits = llama(input_ids=torch.from_numpy(s.ids)[None]).logits[0].float() / s.temperature
    every = logits.log_softmax(-1)[:-1].gather(-1, torch.from_numpy(s.ids)[1:, None])[:, 0]
    return every[s.prompt_length - 1 :]


@pytest.mark.parametrize(("temperature", "expected"), [(0.5, -0.018150), (1.0, -0.126928)])
def test_the_temperature_divides_the_logits(temperature, expected):
    """K15: never the finished log-probability."""
    hidden, head = torch.tensor([[2.0, 0.0]]), torch.eye(2)
    scored = logprobs.score(hidden, head, torch.tensor([0]), torch.tensor([temperature]))
    assert scored.logprobs.item() == pytest.approx(expected, abs=1e-6)


def test_the_position_before_a_token_scores_it():
    """G14: a model that puts 0.9 on the successor of each token."""
    head = torch.full((10, 10), math.log(0.1 / 9))
    head[(torch.arange(10) + 1) % 10, torch.arange(10)] = math.log(0.9)
    ids = torch.tensor([3, 4, 5, 6])
    hidden = torch.eye(10)[ids[1:3]]  # prompt 3, 4: positions 1 and 2 score the answer 5, 6
    scored = logprobs.score(hidden, head, ids[2:], torch.ones(2))
    assert scored.logprobs.tolist() == pytest.approx([math.log(0.9)] * 2)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_fused_head_gives_the_models_own_numbers_and_gradients(llama, temperature):
    s = sample(180, 20, temperature=temperature)  # more answer tokens than one chunk holds
    scored = model.answers(llama, [s])
    expected = naive(llama, s)
    torch.testing.assert_close(scored.logprobs, expected, atol=2e-5, rtol=0)
    gradients = []
    weights = torch.linspace(-1, 1, s.scored)
    for values in (scored.logprobs, expected):
        llama.zero_grad()
        (values * weights).sum().backward()
        gradients.append({name: p.grad.clone() for name, p in llama.named_parameters()})
    for name in gradients[0]:
        torch.testing.assert_close(gradients[0][name], gradients[1][name], atol=1e-4, rtol=1e-4)
    llama.zero_grad()


def test_a_sequence_scores_the_same_alone_and_padded_beside_a_longer_one(llama):
    """G13."""
    short, long = sample(20, 5, seed=1), sample(60, 30, seed=2)
    together = model.answers(llama, [short, long]).logprobs
    torch.testing.assert_close(
        together[: short.scored], model.answers(llama, [short]).logprobs, atol=1e-5, rtol=0
    )
    torch.testing.assert_close(
        together[short.scored :], model.answers(llama, [long]).logprobs, atol=1e-5, rtol=0
    )


def test_each_sample_of_a_micro_batch_keeps_its_own_temperature(llama):
    hot, cold = sample(20, 5, temperature=1.5, seed=1), sample(20, 5, temperature=0.5, seed=1)
    together = model.answers(llama, [hot, cold]).logprobs
    torch.testing.assert_close(
        together, torch.cat([naive(llama, hot), naive(llama, cold)]), atol=2e-5, rtol=0
    )


def test_entropy_of_a_uniform_head_is_the_log_of_its_size():
    scored = logprobs.score(torch.ones(3, 4), torch.zeros(8, 4), torch.tensor([0, 1, 7]), torch.ones(3))
    assert scored.entropy.tolist() == pytest.approx([math.log(8)] * 3)


def test_a_prompts_logprobs_leave_out_the_first_id(llama):
    s = sample(12, 1)
    assert model.all_logprobs(llama, s.ids.tolist()) == pytest.approx(naive(llama, s).tolist(), abs=2e-5)


def test_a_model_that_changes_its_logits_after_the_head_is_refused(llama, monkeypatch):
    forward = type(llama).forward

    def capped(self, *args, **kwargs):
        out = forward(self, *args, **kwargs)
        out.logits = 0.05 * torch.tanh(out.logits / 0.05)
        return out

    monkeypatch.setattr(type(llama), "forward", capped)
    with pytest.raises(ValueError, match="not supported"):
        model._check_head(llama)


def test_rotary_frequencies_of_a_bfloat16_model_stay_float32(tmp_path):
    """Rounded, long prompts differ by 0.05 nats a token from engines."""
    ours = model.load(save(tmp_path / "base", dtype=torch.bfloat16), torch.device("cpu"), torch.bfloat16)
    assert ours.dtype == torch.bfloat16
    assert ours.model.rotary_emb.inv_freq.dtype == torch.float32


def test_the_cut_into_chunks_changes_neither_numbers_nor_gradients(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    found = []
    for rows in (11, 3):
        monkeypatch.setattr(logprobs, "LOGITS", rows * 40)
        hidden, head = (
            torch.randn(n, 8, generator=generator.manual_seed(n)).requires_grad_() for n in (11, 40)
        )
        scored = logprobs.score(hidden, head, torch.arange(11), torch.linspace(0.5, 1.5, 11))
        (scored.logprobs * torch.arange(11)).sum().backward()
        found.append((scored.logprobs, scored.entropy, hidden.grad, head.grad))
    for whole, cut in zip(*found, strict=True):
        torch.testing.assert_close(whole, cut)


def test_the_logit_of_the_answers_own_token_is_not_rounded_to_bfloat16():
    """G12: bfloat16 has steps of 0.125 at 16, which a ratio of trainer to engine would show."""
    hidden = torch.tensor([[16.0, 0.03125]], dtype=torch.bfloat16)
    head = torch.tensor([[1.0, 1.0], [1.0, 0.0]], dtype=torch.bfloat16)
    found = logprobs.score(hidden, head, torch.tensor([0]), torch.ones(1)).logprobs.item()
    assert found == pytest.approx(-math.log1p(math.exp(-0.03125)), abs=1e-6)
    taught = logprobs.score_with_likeliest(hidden, head, torch.tensor([0]), torch.ones(1), 1)
    assert taught.logprobs.item() == pytest.approx(found, abs=1e-6)
