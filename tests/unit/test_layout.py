"""What a turn adds to its base, and when it stands alone."""

from dataclasses import replace
from datetime import UTC, date, datetime
from uuid import UUID

import numpy as np
import pytest

from dukou.store import bases, layout
from dukou.store.bases import Base
from dukou.store.body import Body, Piece
from dukou.store.layout import StoredTurn
from dukou.store.partitions import DEFAULT_PERIOD
from dukou.store.turn_rows import TurnRow

MAY = date(2026, 5, 1)
ANSWER = "a" * 80


def turn(number: int, said: int, prompt: list[int] | None, answer: list[int] | None = None) -> TurnRow:
    """Turn `number` with the first `said` messages of one conversation."""
    messages = tuple(Piece(b"%d" % n) for n in range(said))
    ids = [np.array(ids, np.int32) if ids is not None else None for ids in (prompt, answer)]
    return TurnRow(
        id=UUID(int=number),
        request_id=UUID(int=number),
        tenant="t",
        kind="main",
        endpoint="/v1/chat/completions",
        status="ok",
        body=Body(Piece(b"{}"), messages),
        prompt_ids=ids[0],
        response_ids=ids[1],
        started_at=datetime(2026, 5, 1, tzinfo=UTC),
    )


def lay(row: TurnRow, candidates: list[Base], parent: Base | None, period: date = MAY) -> StoredTurn:
    return layout.lay(row, period, candidates, parent)


def base(row: TurnRow, *, depth: int = 0) -> Base:
    return replace(lay(row, [], None).base, depth=depth)


def ids(stored: StoredTurn) -> tuple[int, list[int], int]:
    columns = stored.columns
    return columns["base_tokens"], columns["prompt_ids"].tolist(), columns["prompt_tokens"]


PARENT = turn(1, 1, [1, 2], [3])


def test_a_first_turn_has_all_of_itself() -> None:
    stored = lay(PARENT, [], None)
    assert ids(stored) == (0, [1, 2], 2)
    assert (stored.columns["base_id"], stored.columns["depth"], stored.columns["prefix_ok"]) == (
        None,
        0,
        None,
    )
    assert (stored.columns["lowest_id"], stored.columns["highest_id"]) == (1, 3)
    assert [kept.body for kept in stored.contents] == [b"{}", b"0"]


def test_a_turn_that_goes_on_adds_its_suffix() -> None:
    stored = lay(turn(2, 3, [1, 2, 3, 4]), [base(PARENT)], base(PARENT))
    assert ids(stored) == (3, [4], 4)
    assert (stored.columns["base_id"], stored.columns["base_messages"], stored.columns["depth"]) == (
        PARENT.id,
        1,
        1,
    )
    assert (stored.columns["message_count"], len(stored.columns["message_hashes"])) == (3, 2 * 16)
    assert stored.columns["prefix_ok"] is True
    assert [kept.body for kept in stored.contents] == [b"{}", b"1", b"2"]


def test_a_prompt_that_drops_the_answers_tokens_still_shares_the_prompt() -> None:
    stored = lay(turn(2, 3, [1, 2, 9]), [base(PARENT)], base(PARENT))
    assert ids(stored) == (2, [9], 3)
    assert stored.columns["prefix_ok"] is False


@pytest.mark.parametrize("prompt", [[1, 9, 3, 4], [7, 2, 3, 4], [1]])
def test_a_prompt_that_begins_otherwise_is_stored_whole(prompt: list[int]) -> None:
    stored = lay(turn(2, 3, prompt), [base(PARENT)], base(PARENT))
    assert ids(stored) == (0, prompt, len(prompt))
    assert stored.columns["base_messages"] == 1  # the messages go on all the same


def test_a_turn_without_ids_is_no_base_for_ids() -> None:
    parent = turn(1, 1, None, None)
    stored = lay(turn(2, 3, [1, 2]), [base(parent)], base(parent))
    assert (ids(stored), stored.columns["prefix_ok"]) == ((0, [1, 2], 2), None)
    without = lay(turn(2, 3, None), [base(PARENT)], base(PARENT))
    assert (
        without.columns["prompt_ids"],
        without.columns["prompt_tokens"],
        without.columns["prefix_ok"],
    ) == (
        None,
        None,
        None,
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"depth": bases.MAX_DEPTH},
        {"period": date(2026, 4, 1)},
        {"tenant": "other"},
        {"period": DEFAULT_PERIOD},
    ],
)
def test_a_base_is_near_and_not_too_deep(changes: dict[str, object]) -> None:
    period = DEFAULT_PERIOD if changes.get("period") == DEFAULT_PERIOD else MAY
    stored = lay(turn(2, 3, [1, 2, 3, 4]), [replace(base(PARENT), **changes)], None, period)
    assert (stored.columns["base_id"], stored.columns["depth"]) == (None, 0)
    assert (ids(stored), len(stored.contents)) == ((0, [1, 2, 3, 4], 4), 4)


def test_of_several_bases_the_one_with_most_is_taken() -> None:
    near, far = turn(3, 1, [1, 2, 3, 4]), PARENT
    stored = lay(turn(4, 1, [1, 2, 3, 4, 5]), [base(far), base(near)], base(far))
    assert (stored.columns["base_id"], ids(stored)) == (near.id, (4, [5], 5))


def with_answer(message: bytes) -> Body:
    return Body(Piece(b"{}"), (Piece(b"0"), Piece(message, said=ANSWER)))


@pytest.mark.parametrize(
    ("message", "kept", "at"),
    [
        (b'{"role":"assistant","content":"%s"}', b'{"role":"assistant","content":}', 30),
        (b'{"content": "%s", "x": 1}', b'{"content": , "x": 1}', 12),
    ],
)
def test_an_answer_that_comes_back_is_not_stored_again(message: bytes, kept: bytes, at: int) -> None:
    answered = base(replace(PARENT, response_text=ANSWER))
    body = with_answer(message % ANSWER.encode())
    stored = lay(replace(turn(2, 2, [1]), body=body), [answered], answered).contents[-1]
    assert (stored.body, stored.answer_id, stored.answer_at) == (kept, PARENT.id, at)
    assert stored.hash == body.pieces[-1].hash


def test_an_answer_that_was_changed_or_written_otherwise_is_stored() -> None:
    for answer, message in ((ANSWER + "!", ANSWER), (ANSWER, "\\u0061" * 80)):
        body = with_answer(b'{"content":"%s"}' % message.encode())
        answered = base(replace(PARENT, response_text=answer))
        stored = lay(replace(turn(2, 2, [1]), body=body), [answered], answered).contents[-1]
        assert (stored.body, stored.answer_id) == (body.pieces[-1].body, None)
