"""Tokens of an answer that must not be trained: no part of loss, gradient, KL, teacher, metrics and lengths.

They stand before later tokens all the same. So an answer A, M, B of which M is left out is, token for token,
two others: A after the prompt, and B after the prompt, A and M.
"""

import uuid
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dukou.settings.learning import LossSettings, TrainerSettings
from dukou.store import spans
from dukou.store.batches import SampleRow
from dukou.store.hints import AlternativeHint
from learner.train import gradient, heldout, hints, metrics, model, weights
from learner.train.samples import Sample, from_turn
from tests.fakes.tiny_llama import VOCABULARY, save

SUMS = ("loss", "tokens", "kl", "entropy", "clipped", "recorded", "mismatch", "mismatched", "taught", "gap")
#: Of each answer: its length, and where the tokens that are left out begin and end.
CUTS = [(12, 4, 9), (30, 0, 11), (9, 6, 9), (20, 5, 6), (7, 0, 0)]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save(tmp_path_factory.mktemp("base"))


def batch():
    """One sample a cut, under one long prompt, the last of which has nothing left out; two have hints."""
    generator = np.random.default_rng(11)
    prompt = generator.integers(0, VOCABULARY, 40)
    for number, (length, begin, end) in enumerate(CUTS):
        rollout = (-6.2 + 0.3 * generator.standard_normal(length)).astype(np.float32)
        rollout[::5] = np.nan
        kept = np.r_[:begin, end:length]
        yield Sample(
            uuid.UUID(int=number),
            np.concatenate([prompt, generator.integers(0, VOCABULARY, length)]),
            len(prompt),
            rollout,
            0.7 + 0.1 * number,
            (-1.0) ** number * (1 + number),
            (-1.0) ** number,
            number % 2,
            False,
            np.concatenate([prompt[:20], np.arange(number + 5), prompt[20:]]) if number % 2 else None,
            None if begin == end else kept,
        )


def part(sample, begin, end):
    """The sample's tokens from `begin` to `end` as an answer of its own: what comes before is its prompt."""
    first, hint = sample.prompt_length, sample.hinted_prompt
    return replace(
        sample,
        ids=sample.ids[: first + end],
        prompt_length=first + begin,
        rollout=sample.rollout[begin:end],
        hinted_prompt=None if hint is None else np.concatenate([hint, sample.answer[:begin]]),
        trained=None,
    )


def parts(samples):
    for sample, (length, begin, end) in zip(samples, CUTS, strict=True):
        around = [(0, begin), (end, length)] if begin != end else [(0, length)]
        yield from (part(sample, *edges) for edges in around if edges[0] != edges[1])


def gradients(base, samples, loss, sharing="branches", **trainer):
    config = TrainerSettings(**{"lora_rank": 4, **trainer})
    trained = weights.of(model.load(base, torch.device("cpu")), config, LossSettings(kl=0.2))
    with torch.no_grad():
        for number, master in enumerate(trained.masters.values()):
            master += 0.02 * torch.randn(master.shape, generator=torch.Generator().manual_seed(number))
    trained.spread()
    trained.model.sharing = sharing
    totals = gradient.accumulate(trained, list(samples), loss, config)
    return {name: master.grad for name, master in trained.masters.items()}, totals


def assert_same(one, other):
    (found, totals), (expected, plain) = one, other
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], atol=1e-6, rtol=1e-4)
    for name in SUMS:
        assert getattr(totals, name) == pytest.approx(getattr(plain, name), abs=1e-4), name
    assert sorted(totals.differences) == pytest.approx(sorted(plain.differences), abs=1e-5)


@pytest.mark.parametrize("sharing", ["nothing", "chains", "branches"])
@pytest.mark.parametrize("mode", [{}, {"mode": "combine"}, {"mode": "opd", "opd_top_k": 3}])
def test_what_is_left_out_contributes_nothing_whatever_is_shared(base, mode, sharing):
    loss = LossSettings(kl=0.2, **mode)
    expected = gradients(base, parts(batch()), loss, "nothing")
    assert_same(gradients(base, batch(), loss, sharing), expected)
    assert expected[1].tokens == sum(length - (end - begin) for length, begin, end in CUTS)


@pytest.mark.parametrize("how", ["sequence_mean", "fixed_length"])
def test_an_answer_is_as_long_as_what_is_trained_of_it(base, how):
    loss = LossSettings(kl=0.2, aggregation=how)
    ends = [
        (sample, cut) for sample, cut in zip(batch(), CUTS, strict=True) if 0 in cut[1:2] or cut[2] == cut[0]
    ]
    assert len(ends) == 3
    alone = [part(sample, *((0, b) if e == n else (e, n))) for sample, (n, b, e) in ends]
    assert_same(
        gradients(base, [sample for sample, _ in ends], loss, method="full"),
        gradients(base, alone, loss, "nothing", method="full"),
    )


def test_the_numbers_recorded_for_what_is_left_out_change_no_bit(base):
    def other(sample):
        rollout = sample.rollout.copy()
        rollout[np.setdiff1d(np.arange(len(rollout)), sample.trained)] = -50
        return replace(sample, rollout=rollout)

    samples = [sample for sample in batch() if sample.trained is not None]
    one, many = (gradients(base, some, LossSettings(kl=0.2)) for some in (samples, map(other, samples)))
    assert all(torch.equal(one[0][name], many[0][name]) for name in one[0])
    assert one[1] == many[1]


def test_all_tokens_named_and_none_named_are_the_same_bits(base):
    plain = [replace(sample, trained=None) for sample in batch()]
    named = [replace(sample, trained=np.arange(len(sample.rollout))) for sample in plain]
    for loss in (LossSettings(kl=0.2), LossSettings(mode="opd", opd_top_k=3)):
        one, other = gradients(base, plain, loss), gradients(base, named, loss)
        assert all(torch.equal(one[0][name], other[0][name]) for name in one[0])
        assert one[1] == other[1]
    assert metrics._distinct(plain) == metrics._distinct(named)


def test_held_out_answers_are_measured_on_what_may_be_trained(base):
    trained = weights.of(model.load(base, torch.device("cpu")), TrainerSettings(lora_rank=4), LossSettings())
    end = heldout.begin(trained, list(batch()), 512, base=True)
    with torch.no_grad():
        for master in trained.masters.values():
            master += 0.02 * torch.ones_like(master)
    trained.spread()
    found = end()
    with trained.reference() as reference, torch.no_grad():
        before = [model.answers(reference, [sample]).logprobs for sample in whole(batch())]
    with torch.no_grad():
        after = [model.answers(trained.model, [sample]).logprobs for sample in whole(batch())]
    kept = [slice(None) if s.trained is None else torch.from_numpy(s.trained) for s in batch()]
    rewards = [sample.reward for sample in batch()]
    before, after = ([each[some] for each, some in zip(all_, kept, strict=True)] for all_ in (before, after))
    expected = heldout.compare(rewards, before, after, before)
    assert found == pytest.approx(expected, abs=1e-5)
    assert found["held/kl_last"] > 0


def whole(samples):
    return [replace(sample, trained=None) for sample in samples]


def test_a_hint_is_chosen_by_what_it_does_to_what_may_be_trained(base):
    trained = weights.of(
        model.load(base, torch.device("cpu")), TrainerSettings(lora_rank=4), LossSettings(mode="opd")
    )
    sample = next(batch())
    with torch.no_grad():
        chosen = hints._logprobs(trained, sample)
        every = hints._logprobs(trained, replace(sample, trained=None))
    assert chosen.tolist() == pytest.approx(every[sample.trained].tolist(), abs=1e-5)
    alternatives = [
        AlternativeHint(1, sample.ids[:40].astype(np.int32)),
        AlternativeHint(2, np.arange(40, dtype=np.int32)),
    ]
    assert hints.most_effective(trained, sample, alternatives).hint_id == 2


def test_trigrams_over_what_is_left_out_are_none():
    sample = replace(next(batch()), trained=np.array([0, 1, 2, 3, 9, 10]))
    ids = np.concatenate([sample.ids[:40], [7, 7, 7, 7, 1, 2, 3, 4, 5, 7, 7, 6]])
    assert metrics._distinct([replace(sample, ids=ids)]) == 0.5  # 7 7 7 twice; 7 7 | 7 7 is no trigram
    assert metrics._distinct([replace(sample, ids=ids, trained=np.array([0, 2, 4]))]) is None


def test_an_answer_of_which_nothing_may_be_trained_is_no_sample():
    with pytest.raises(ValueError, match="no token of its answer"):
        replace(next(batch()), trained=np.array([], np.int64))


def test_a_turns_spans_are_the_places_of_a_sample():
    row = SampleRow(
        turn_id=uuid.UUID(int=1), prompt_ids=np.array([1, 2], np.int32),
        response_ids=np.array([5, 6, 7, 8, 9], np.int32), response_logprobs=None,
        temperature=1.0, advantage=0.0, reward=0.0, staleness=0, finish_reason="stop", hint_prompt_ids=None,
        trained_tokens=np.array([0, 2, 4, 5], np.int32),
    )  # fmt: skip
    sample = from_turn(row)
    assert (sample.tokens.tolist(), sample.before.tolist(), sample.scored) == ([5, 6, 9], [1, 2, 5], 3)
    assert from_turn(replace(row, trained_tokens=None)).trained is None


@given(st.lists(st.booleans(), max_size=12))
def test_spans_and_positions_say_the_same(chosen):
    mask = np.array(chosen, bool)
    packed = spans.pack(mask)
    assert packed.dtype == np.int32
    assert spans.positions(packed, len(mask)).tolist() == np.flatnonzero(mask).tolist()


@pytest.mark.parametrize("edges", [[1], [2, 2], [3, 1], [0, 9], [-1, 2], [0, 2, 2, 4], [0, 1, 3]])
def test_what_is_no_span_is_refused(edges):
    with pytest.raises(ValueError, match="are no spans of 8 tokens"):
        spans.positions(np.array(edges), 8)
