"""A prefix that is computed once gives the gradients and sums of separate passes."""

import uuid
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from dukou.settings.learning import LossSettings, TrainerSettings
from learner.train import attention, gradient, model, weights
from learner.train.samples import RowPiece, Sample, plan
from tests.fakes.tiny_llama import VOCABULARY, save


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save(tmp_path_factory.mktemp("base"))


def batch():
    """A chain of three turns, siblings of its last and its first, a sibling's twin, and somebody else."""
    generator = np.random.default_rng(5)
    ids = [generator.integers(0, VOCABULARY, length) for length in (120, 20, 30, 25, 40, 60)]
    prompt, first, more, second, other, alone = ids
    once, twice = np.concatenate([prompt, first]), np.concatenate([prompt, first, more, second])
    sequences = [
        (once, 20),
        (twice, 25),
        (np.concatenate([twice, other]), 11),
        (np.concatenate([twice[:-20], other]), 40),
        (np.concatenate([prompt, other[:9]]), 9),
        (np.concatenate([prompt, other[:9]]), 9),
        (alone, 50),
    ]
    return [made(number, *sequence, generator) for number, sequence in enumerate(sequences)]


def made(number, ids, answer, generator):
    rollout = (-6.2 + 0.3 * generator.standard_normal(answer)).astype(np.float32)
    hint = np.concatenate([ids[: len(ids) - answer], np.arange(9)]) if number % 3 == 0 else None
    temperature, advantage = 0.7 + 0.1 * number, (-1.0) ** number * (1 + number)
    return Sample(
        uuid.UUID(int=number),
        ids,
        len(ids) - answer,
        rollout,
        temperature,
        advantage,
        0.0,
        0,
        False,
        hint,
    )


def moved(base, **trainer):
    """Weights that are not the base's, so that there is a KL."""
    config = TrainerSettings(**{"lora_rank": 4, **trainer})
    trained = weights.of(model.load(base, torch.device("cpu")), config, LossSettings(kl=0.2))
    with torch.no_grad():
        for number, master in enumerate(trained.masters.values()):
            master += 0.02 * torch.randn(master.shape, generator=torch.Generator().manual_seed(number))
    trained.spread()
    return trained, config


def gradients(base, samples, sharing, loss, **trainer):
    trained, config = moved(base, **trainer)
    assert model.sharing(trained.model) == "branches"
    trained.model.sharing = sharing
    totals = gradient.accumulate(trained, samples, loss, config)
    return {name: master.grad for name, master in trained.masters.items()}, totals


@pytest.mark.parametrize("mode", [{}, {"mode": "combine"}, {"mode": "opd", "opd_top_k": 3}])
@pytest.mark.parametrize("sharing", ["chains", "branches"])
@pytest.mark.parametrize("method", ["lora", "full"])
def test_gradients_and_sums_are_those_of_separate_passes(base, method, sharing, mode):
    loss = LossSettings(kl=0.2, aggregation="sequence_mean", **mode)
    expected, plain = gradients(base, batch(), "nothing", loss, method=method)
    found, totals = gradients(base, batch(), sharing, loss, method=method)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], atol=1e-6, rtol=1e-4)
    for name in ("loss", "tokens", "kl", "entropy", "clipped", "recorded", "mismatch", "taught", "gap"):
        assert getattr(totals, name) == pytest.approx(getattr(plain, name), abs=1e-4), name
    assert sorted(totals.differences) == pytest.approx(sorted(plain.differences), abs=1e-5)


@pytest.mark.parametrize("sharing", ["chains", "branches"])
def test_every_log_probability_is_that_of_a_separate_pass(base, sharing):
    trained, _ = moved(base)
    samples = batch()
    rows = plan(samples, 512, sharing)
    assert max(len(row.members) for row in rows) > 1
    for row in rows:
        with torch.no_grad():
            found = model.scores(trained.model, [row]).logprobs
            alone = [model.answers(trained.model, [samples[number]]).logprobs for number in row.members]
        torch.testing.assert_close(found, torch.cat(alone), atol=2e-6, rtol=1e-6)


def test_a_member_that_reads_the_others_branch_would_be_seen(base):
    """What the tests above rest on: the numbers are other ones where a branch begins elsewhere."""
    trained, _ = moved(base)
    samples = batch()
    row = next(row for row in plan(samples, 512, "branches") if row.branches)
    wrong = replace(row, pieces=(row.pieces[0], *(replace(p, after=p.after - 1) for p in row.pieces[1:])))
    with torch.no_grad():
        one, other = (model.scores(trained.model, [each]).logprobs for each in (row, wrong))
    assert (one - other).abs().max() > 1e-4


def test_a_replay_has_the_same_bits(base):
    one, other = (gradients(base, batch(), "branches", LossSettings(kl=0.2))[0] for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


PIECES = (RowPiece(0, 0), RowPiece(130, 100), RowPiece(131, 60), RowPiece(240, 130), RowPiece(250, 0))


def visible(pieces, length):
    """(L, L): which tokens each one sees, by the definition of pieces."""
    mask, path = torch.zeros(length, length, dtype=torch.bool), []
    ends = [*(piece.start for piece in pieces[1:]), length]
    for piece, end in zip(pieces, ends, strict=True):
        path = path[: piece.after]
        for token in range(piece.start, end):
            path = [*path, token]
            mask[token, path] = True
    return mask


@pytest.mark.parametrize(("heads", "shared"), [(4, 4), (6, 2)])
def test_attention_over_pieces_is_torchs_under_their_mask(heads, shared):
    torch.manual_seed(0)
    shapes = [(1, heads, 260, 8), (1, shared, 260, 8), (1, shared, 260, 8)]
    inputs = [torch.randn(shape).requires_grad_() for shape in shapes]
    pull, mask = torch.randn(shapes[0]), visible(PIECES, 260)
    found = []
    for out in (
        attention.causal(*inputs, 0.3, PIECES),
        functional.scaled_dot_product_attention(*inputs, attn_mask=mask, scale=0.3, enable_gqa=True),
    ):
        found.append([out.detach(), *torch.autograd.grad((out * pull).sum(), inputs)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("change", "sharing"),
    [
        ({}, "branches"),
        ({"sliding_window": 16}, "chains"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "chains"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "nothing"),
    ],
)
def test_a_model_that_is_not_the_same_in_pieces_shares_less(base, change, sharing):
    loaded = model.load(base, torch.device("cpu"))
    for name, value in change.items():
        setattr(loaded.config, name, value)
    assert model._sharing(loaded) == sharing


def test_a_model_whose_branches_come_out_otherwise_has_none(base, monkeypatch):
    loaded = model.load(base, torch.device("cpu"))
    monkeypatch.setattr(attention, "as_mask", lambda pieces: None)
    assert model._sharing(loaded) == "chains"
