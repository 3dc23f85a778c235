"""What a step says of its batch."""

import uuid

import numpy as np
import pytest

from learner.train.gradient import Totals
from learner.train.metrics import of_step
from learner.train.samples import Sample


def batch(*pairs):
    """Samples of (reward, answer length)."""
    return [
        Sample(
            uuid.UUID(int=number),
            np.arange(2 + length),
            2,
            np.zeros(length, np.float32),
            1.0,
            0.0,
            reward,
            0,
            False,
        )
        for number, (reward, length) in enumerate(pairs)
    ]


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([(-1.0, 10), (0.0, 20), (1.0, 30)], 1.0),
        ([(1.0, 10), (0.0, 20), (-1.0, 30)], -1.0),
        ([(1.0, 10), (1.0, 20)], None),
        ([(1.0, 10), (-1.0, 10)], None),
        ([(1.0, 10)], None),
    ],
)
def test_whether_long_answers_are_rewarded_is_known_of_every_step(pairs, expected):
    """J14."""
    samples = batch(*pairs)
    measured = of_step(samples, Totals(tokens=float(sum(s.scored for s in samples))), kl=False, grad_norm=1.0)
    found = measured["reward/length_correlation"]
    assert found is None if expected is None else found == pytest.approx(expected)
