"""What samples begin with is in a row once, and each finds its tokens there."""

import uuid

import numpy as np
import pytest

from learner.train.samples import LEAST_SHARED, RowPiece, Sample, passes, plan


def told(first, length):
    """`length` ids that begin nowhere else."""
    return list(range(first, first + length))


def sample(ids, answer=4, number=0):
    rollout = np.full(answer, np.nan, np.float32)
    return Sample(uuid.UUID(int=number), np.array(ids), len(ids) - answer, rollout, 0.5, 0.0, 0.0, 0, False)


SYSTEM = told(1000, 60)
CHAIN = [SYSTEM + told(2000, length) for length in (10, 25, 50)]
SIBLING = [*CHAIN[2][:-8], *told(3000, 9)]
BATCH = [sample(ids) for ids in (told(5000, 30), CHAIN[1], SIBLING, CHAIN[0], CHAIN[2])]


def seen(row, place):
    """The ids that the token at `place` of the row sees, itself included, by the definition of pieces."""
    path = []
    ends = [*(piece.start for piece in row.pieces[1:]), len(row.ids)]
    for piece, end in zip(row.pieces, ends, strict=True):
        path = path[: piece.after] + list(range(piece.start, end))
        if place < end:
            return row.ids[path[: path.index(place) + 1]].tolist()
    raise AssertionError("beyond the row")


def found(rows, samples):
    """Of each sample, the ids before its first answer token, as its row shows them, and its answer."""
    by_member = {}
    for row in rows:
        start = 0
        for member in row.members:
            own = slice(start, start + samples[member].scored)
            by_member[member] = (seen(row, int(row.before[own][0])), row.tokens[own].tolist())
            start = own.stop
    return [by_member[number] for number in range(len(samples))]


@pytest.mark.parametrize("sharing", ["nothing", "chains", "branches"])
def test_every_sample_finds_its_prompt_and_its_answer(sharing):
    expected = [(s.ids[: s.prompt_length].tolist(), s.answer.tolist()) for s in BATCH]
    assert found(plan(BATCH, 512, sharing), BATCH) == expected


def test_a_chain_is_its_longest_sample():
    rows = plan(BATCH, 512, "chains")
    assert [row.members for row in rows] == [(3, 1, 4), (2,), (0,)]
    assert rows[0].ids.tolist() == CHAIN[2]
    assert not any(row.branches for row in rows)


def test_a_branch_holds_only_how_its_sample_goes_on():
    (row, other) = plan(BATCH, 512, "branches")
    assert (row.members, other.members) == ((3, 1, 4, 2), (0,))
    assert row.ids.tolist() == CHAIN[2] + told(3000, 9)
    assert row.pieces == (RowPiece(0, 0), RowPiece(110, 102))
    assert row.positions.tolist() == [*range(110), *range(102, 111)]


def test_the_same_answer_twice_is_one_row_scored_twice():
    (row,) = plan([BATCH[4], BATCH[4]], 512, "chains")
    assert row.members == (0, 1)
    assert row.tokens.tolist() == 2 * CHAIN[2][-4:]
    assert row.before[:4].tolist() == row.before[4:].tolist()


def test_no_branch_where_little_is_shared_or_more_is_added():
    few = told(0, LEAST_SHARED - 1)
    assert len(plan([sample(few + told(at, 5)) for at in (100, 200)], 512, "branches")) == 2
    enough = told(0, LEAST_SHARED)
    assert len(plan([sample(enough + told(at, 5)) for at in (100, 200)], 512, "branches")) == 1
    assert len(plan([sample(enough + told(at, LEAST_SHARED + 1)) for at in (100, 200)], 512, "branches")) == 2


def test_a_row_that_branches_is_within_the_budget_or_twice_its_longest_sample():
    siblings = [sample(told(0, 200) + told(1000 * n, 50)) for n in range(1, 30)]
    for budget, per_row in ((0, 6), (700, 10)):
        sizes = [len(row.ids) for row in plan(siblings, budget, "branches")]
        assert sizes[:-1] == [200 + 50 * per_row] * (29 // per_row)
    rows = plan(siblings, 0, "branches")
    assert sum(len(row.members) for row in rows) == 29


def test_the_plan_does_not_depend_on_the_order_of_other_samples():
    turned = [BATCH[n] for n in (3, 0, 4, 2, 1)]
    one, other = plan(BATCH, 512, "branches"), plan(turned, 512, "branches")
    assert [row.ids.tolist() for row in one] == [row.ids.tolist() for row in other]
    assert [row.before.tolist() for row in one] == [row.before.tolist() for row in other]


def test_rows_share_a_pass_up_to_the_budget_and_one_that_branches_goes_alone():
    rows = plan([*BATCH, sample(told(7000, 30))], 512, "branches")
    assert [[row.members for row in one] for one in passes(rows, 512)] == [[(0,), (5,)], [(3, 1, 4, 2)]]
    assert [len(one) for one in passes(rows, 59)] == [1, 1, 1]
