import pytest

from dukou.settings.learning import GuardSettings
from dukou.store.batches import EndedBatch
from learner.batch.close import why_frozen_after

GUARD = GuardSettings(max_kl=2.0)
DRIFT = EndedBatch(5, GUARD, "drift", "kl/mean is 3")
SPIKE = EndedBatch(5, GUARD, "grad_spike", "the norm is 9")
FINE = EndedBatch(5, GUARD, None, None)


def test_drift_freezes_and_says_why():
    assert why_frozen_after([DRIFT, FINE], 5, GUARD) == "learning is frozen: kl/mean is 3"


@pytest.mark.parametrize(
    ("newest", "live", "guard"),
    [
        ([], 5, GUARD),
        ([FINE, DRIFT], 5, GUARD),
        ([DRIFT], 4, GUARD),
        ([DRIFT], 5, GuardSettings(max_kl=9.0)),
        ([SPIKE, SPIKE], 5, GUARD),
        ([SPIKE, SPIKE, FINE], 5, GUARD),
    ],
    ids=["nothing yet", "went on", "rolled back", "limit raised", "two spikes", "not in a row"],
)
def test_learning_goes_on(newest, live, guard):
    assert why_frozen_after(newest, live, guard) is None


def test_three_skipped_batches_in_a_row_freeze():
    assert "the last 3 batches were skipped" in why_frozen_after([SPIKE] * 3, 5, GUARD)
