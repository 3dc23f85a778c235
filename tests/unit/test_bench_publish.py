"""The publishing bench's figures: what counts as failed, what a stall is, when a label is wrong."""

import asyncio
from dataclasses import replace

import pytest

from bench.publish import Kind, Measured, summary
from bench.publishing import blocks
from bench.publishing.blocks import Block
from bench.publishing.figures import (
    Outcomes,
    gaps_of,
    outcomes,
    percentile,
    ratio,
    usual_ratio,
    wrongly_labelled,
)
from bench.publishing.users import Answer


def answer(*chunks: float, **more: object) -> Answer:
    return Answer(10.0, "s", chunks=list(chunks), **{"finish": "length", "done": True, **more})  # type: ignore[arg-type]


def test_a_stall_is_the_longest_silence_the_first_one_included() -> None:
    assert answer(10.5, 10.6, 10.8).stall == 0.5
    assert answer(10.1, 11.0, 11.1).stall == pytest.approx(0.9)


def test_every_answer_is_counted_once_by_how_it_ended() -> None:
    ended = [
        answer(11),
        answer(11, finish="abort"),
        answer(11, done=False),
        answer(11, finish=None),
        answer(error="503"),
    ]
    assert outcomes(ended) == Outcomes(answers=5, failed=1, aborted=1, truncated=2)


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile(range(1, 101), 0.99) == 99
    assert percentile([7.0], 0.5) == 7.0
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_a_ratio_without_a_divisor_is_missing_not_zero() -> None:
    assert ratio(3, 2) == 1.5
    assert ratio(None, 2) is None
    assert ratio(3, 0) is None


def test_the_usual_ratio_is_of_rounds_so_that_one_bad_round_of_the_machine_is_none() -> None:
    assert usual_ratio([1.0, 9.0, 2.2], [1.0, 10.0, 2.0]) == 1.0
    assert usual_ratio([1.0, 90.0, 2.0], [1.0, 1.0, 2.0]) == 1.0


def test_a_label_is_wrong_where_the_other_version_explains_the_turn_better() -> None:
    recorded, near, far = [-1.0, None, -2.0], [-1.1, -9.0, -2.0], [-3.0, -9.0, -2.0]
    assert not wrongly_labelled(recorded, near, far)
    assert wrongly_labelled(recorded, far, near)


def block(*answers: Answer, **more: object) -> Block:
    return Block([list(answers)], **more)  # type: ignore[arg-type]


def test_the_line_has_what_every_part_shows_and_ratios_within_a_part() -> None:
    kinds = {
        "none": Kind.of(block(answer(10.1, 10.2))),
        "bare": Kind.of(block(answer(10.1, 10.5), publishes=2)),
        "dukou": Kind.of(
            block(
                answer(10.1, 10.7),
                answer(error="503"),
                publishes=2,
                to_first_token=[0.3],
                back_to_first_token=[0.5],
            )
        ),
        "learning": Kind.of(block(answer(10.1, 10.2), publishes=1)),
    }
    full = Measured(kinds, wrong=0, scored=9, batch_to_first_token=4.0, memory_growth=1.0)
    lora = replace(full, kinds={name: kind for name, kind in kinds.items() if name != "bare"})
    line = summary({"full": full, "lora": lora})
    assert (line["publishes"], line["rollbacks"], line["failed"], line["turns_scored_again"]) == (6, 2, 2, 18)
    assert (line["full_stall_p99_vs_bare"], line["full_rollback_to_first_token_s"]) == (1.5, 0.5)
    assert line["lora_gap_p99_vs_no_publish"] == 6.0
    assert "lora_stall_p99_vs_bare" not in line


class SlowUsers:
    """Their first answer lasts longer than the block's work; of the second one the block sees two tokens."""

    def __init__(self) -> None:
        self.answers = [answer(11, 12)]
        self.is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True

    async def run(self) -> None:
        await asyncio.sleep(0.05)
        self.answers.append(answer())
        while not self.is_stopped:
            await asyncio.sleep(0.01)
            self.answers[-1].chunks.append(11.0 + len(self.answers[-1].chunks))


def test_a_block_lasts_until_there_is_something_to_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_WARM", 0.0)
    block = Block()
    blocks.nothing(block, 0.0, SlowUsers())  # type: ignore[arg-type]
    (counted,) = block.rounds
    assert len(counted) == 1
    assert gaps_of(counted)


def test_a_part_that_was_not_measured_is_not_in_the_line() -> None:
    assert [name for name in summary({}) if name.startswith(("full", "lora", "large"))] == []
