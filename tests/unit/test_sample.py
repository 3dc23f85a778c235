import uuid

import numpy as np
import pytest

from learner.train.samples import Sample, pack


def sample(ids, prompt_length, rollout, temperature=1.0):
    return Sample(
        uuid.UUID(int=0),
        np.array(ids),
        prompt_length,
        np.array(rollout, np.float32),
        temperature,
        0.0,
        0.0,
        0,
        False,
    )


def test_lengths_that_do_not_fit_are_refused_never_cut():
    """G14."""
    with pytest.raises(ValueError, match="2 answer ids, 3 log-probabilities"):
        sample([1, 2, 3, 4], 2, [0, 0, 0])


def test_an_answer_without_prompt_is_refused():
    with pytest.raises(ValueError, match="needs a prompt"):
        sample([1, 2], 0, [0, 0])


def test_a_greedy_answer_is_refused():
    with pytest.raises(ValueError, match="not above 0"):
        sample([1, 2], 1, [0], temperature=0.0)


def test_every_sequence_is_packed_once_within_the_budget():
    lengths = [5, 64, 60, 62, 300, 64, 7, 64]
    packs = pack(lengths, budget=200)
    assert sorted(i for rows in packs for i in rows) == list(range(len(lengths)))
    for rows in packs:
        longest = max(lengths[i] for i in rows)
        assert len(rows) == 1 or longest * len(rows) <= 200


def test_padding_is_bounded():
    assert pack([10, 100], budget=1000) == [[0], [1]]
    assert pack([95, 100], budget=1000) == [[0, 1]]


def test_a_sequence_above_the_budget_goes_alone():
    assert pack([500, 10], budget=100) == [[1], [0]]
