"""Kill -9 of a scorer at work, fifty times: `python -m bench.judging.kills`."""

import pytest

from bench.judging.kills import measure

KILLS = 50


@pytest.mark.slow
def test_every_turn_ends_with_its_votes_and_no_more_is_paid_than_was_in_flight():
    """J15."""
    found = measure(KILLS)
    assert found["turns_with_exactly_m_votes"] == found["turns"]
    assert 0 <= found["paid_beyond_needed"] <= found["paid_beyond_needed_at_most"]
    assert found["not_in_the_ledger"] <= found["paid_beyond_needed"]
    assert found["of_scorers_at_work"] > KILLS / 2
