"""Top-k reverse KL: against the closed form, against finite differences, and through the trainer."""

import math
import uuid
from dataclasses import replace

import numpy as np
import pytest
import torch

from dukou.settings.learning import LossSettings, TrainerSettings
from learner.train import gradient, logprobs, loss, model, weights
from learner.train.samples import Sample
from tests.fakes.tiny_llama import VOCABULARY, save


def of(logits, ids):
    return logits.log_softmax(-1).gather(-1, ids)


def pair(seed=0, positions=5, tokens=12, k=3):
    torch.manual_seed(seed)
    student, teacher = (torch.randn(positions, tokens, dtype=torch.float64) for _ in range(2))
    return student.requires_grad_(), teacher, teacher.topk(k).indices


def test_it_is_the_closed_form_with_all_others_as_one_outcome():
    student = torch.tensor([[0.5, 0.2]]).log()
    teacher = torch.tensor([[0.6, 0.3]]).log()
    expected = 0.5 * math.log(0.5 / 0.6) + 0.2 * math.log(0.2 / 0.3) + 0.3 * math.log(0.3 / 0.1)
    assert loss.top_k_reverse_kl(student, teacher).item() == pytest.approx(expected, abs=1e-6)


def test_over_the_whole_vocabulary_it_is_the_reverse_kl_and_over_fewer_at_most_that():
    student, teacher, _ = pair()
    whole = (student.log_softmax(-1).exp() * (student.log_softmax(-1) - teacher.log_softmax(-1))).sum(-1)
    every = teacher.topk(12).indices
    torch.testing.assert_close(loss.top_k_reverse_kl(of(student, every), of(teacher, every)), whole)
    before = torch.zeros(5, dtype=torch.float64)
    for k in (1, 3, 6, 11):
        ids = teacher.topk(k).indices
        now = loss.top_k_reverse_kl(of(student, ids), of(teacher, ids))
        assert (now >= before).all()
        assert (now <= whole + 1e-9).all()
        before = now.detach()


def test_it_and_its_gradient_are_zero_where_student_and_teacher_agree():
    student, _, ids = pair()
    found = loss.top_k_reverse_kl(of(student, ids), of(student, ids))
    found.sum().backward()
    assert found.abs().max() < 1e-12
    assert student.grad.abs().max() < 1e-12


def test_its_gradient_is_that_of_finite_differences():
    student, teacher, ids = pair()
    there = of(teacher, ids)
    assert torch.autograd.gradcheck(lambda s: loss.top_k_reverse_kl(of(s, ids), there), student)


def test_where_no_teacher_is_there_is_neither_value_nor_gradient():
    student, teacher, ids = pair()
    there = of(teacher, ids)
    there[2] = torch.nan
    found = loss.top_k_reverse_kl(of(student, ids), there)
    found.sum().backward()
    assert found[2] == 0
    assert not student.grad[2].any()
    assert student.grad[3].any()


def test_certainty_on_both_sides_stays_finite():
    student = torch.tensor([[0.0, -60.0]], requires_grad=True)
    found = loss.top_k_reverse_kl(student, torch.tensor([[-1e-9, -40.0]]))
    found.sum().backward()
    assert torch.isfinite(found).all()
    assert torch.isfinite(student.grad).all()


def test_the_head_gives_many_tokens_of_a_position_as_it_gives_one():
    torch.manual_seed(0)
    hidden, head = torch.randn(300, 16, requires_grad=True), torch.randn(50, 16, requires_grad=True)
    tokens, temperature = torch.randint(0, 50, (300, 4)), torch.linspace(0.5, 1.5, 300)
    pull = torch.randn(300, 4)
    gradients = []
    for found in (
        logprobs.score(hidden, head, tokens, temperature).logprobs,
        (hidden @ head.T / temperature[:, None]).log_softmax(-1).gather(-1, tokens),
    ):
        gradients.append(torch.autograd.grad((found * pull).sum(), (hidden, head)))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_a_teachers_likeliest_tokens_are_those_of_the_whole_softmax():
    hidden, head = torch.randn(9, 16), torch.randn(50, 16)
    tokens = torch.arange(9)
    found = logprobs.score_with_likeliest(hidden, head, tokens, torch.full((9,), 0.7), 5)
    every = (hidden @ head.T / 0.7).log_softmax(-1)
    torch.testing.assert_close(found.logprobs, every[tokens, tokens])
    torch.testing.assert_close(found.likely, every.topk(5).values)
    assert torch.equal(found.likeliest, every.topk(5).indices)


def hinted(number):
    ids = np.random.default_rng(number).integers(0, VOCABULARY, 30)
    rollout = np.full(20, np.nan, np.float32)
    told = Sample(uuid.UUID(int=number), ids, 10, rollout, 0.8, 0.0, 0.0, 0, False)
    return replace(told, hinted_prompt=np.arange(30 + number))


@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_step_brings_the_model_nearer_to_what_the_hint_makes_of_it(tmp_path, method):
    """Measured on the whole vocabulary, by the model's own logits."""
    settings, config = (
        LossSettings(kl=0, mode="opd", opd_top_k=8),
        TrainerSettings(lora_rank=4, method=method),
    )
    trained = weights.of(model.load(save(tmp_path), torch.device("cpu")), config, settings)
    samples = [hinted(1), hinted(2)]

    def distribution(sample):
        states = trained.model(input_ids=torch.from_numpy(sample.ids)[None]).logits[0]
        return (states[sample.prompt_length - 1 : -1] / sample.temperature).log_softmax(-1)

    def distance():
        student = torch.cat([distribution(sample) for sample in samples])
        return float((student.exp() * (student - teacher)).sum(-1).mean())

    with torch.no_grad():
        teacher = torch.cat([distribution(sample.as_hinted()) for sample in samples])
        before = distance()
    totals = gradient.accumulate(trained, samples, settings, config)
    with torch.no_grad():
        for master in trained.masters.values():
            master -= 0.5 * master.grad
        trained.spread()
        assert distance() < before
    assert 0 < totals.loss <= before + 1e-5


def test_without_a_hint_top_k_changes_nothing(tmp_path):
    config, plain = TrainerSettings(lora_rank=4), replace(hinted(1), hinted_prompt=None, advantage=1.0)
    found = []
    for k in (0, 8):
        settings = LossSettings(kl=0, mode="combine", opd_top_k=k)
        trained = weights.of(model.load(save(tmp_path), torch.device("cpu")), config, settings)
        gradient.accumulate(trained, [plain], settings, config)
        found.append([master.grad for master in trained.masters.values()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
