"""Which bodies were in flight at deaths: what lines say, what a file does with them, who is refused."""

import json
import os
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.deaths import ONE_DEATH, REMEMBERED, Death, Ledger, cleared_line, death_line
from gateway.relay.errors import NoEngineError, RequestKillsEnginesError
from gateway.relay.suspects import Suspects, digest

pytestmark = pytest.mark.anyio

PATH, POISON, INNOCENT = "/v1/chat/completions", b'{"poison": 1}', b'{"innocent": 1}'
A, B = "http://a", "http://b"


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Seen(Suspects):
    """One worker that looks at the file each time."""

    def _look(self, *, at_once: bool = False) -> None:
        super()._look(at_once=True)


def workers(folder: Path, clock: Clock, count: int = 2, **more: Any) -> list[Suspects]:
    return [Seen(folder / "suspects", clock, **more) for _ in range(count)]


def ledger(*deaths: Death) -> Ledger:
    found = Ledger()
    found.read(b"".join(death_line("x", death) for death in deaths))
    return found


def test_two_engines_are_two_deaths_and_one_engine_dies_again_only_after_a_while() -> None:
    assert ledger(Death(A, 0, False), Death(B, 0, False)).count("x", 1) == 2
    assert ledger(Death(A, 0, False), Death(A, ONE_DEATH, False)).count("x", 9) == 1
    assert ledger(Death(A, 0, False), Death(A, ONE_DEATH + 1, False)).count("x", 9) == 2
    assert ledger(Death(A, 0, False)).count("y", 1) == 0


def test_a_death_is_forgotten_after_ten_minutes() -> None:
    found = ledger(Death(A, 0, False), Death(B, 100, False))
    assert [found.count("x", now) for now in (REMEMBERED - 1, REMEMBERED, REMEMBERED + 100)] == [2, 1, 0]
    assert [found.is_empty(now) for now in (REMEMBERED + 99, REMEMBERED + 100)] == [False, True]


def test_an_answer_that_begins_takes_back_the_deaths_before_one_began_and_a_whole_one_all() -> None:
    found = ledger(Death(A, 0, False), Death(B, 0, True))
    found.read(cleared_line("x", "begun"))
    assert found.count("x", 1) == 1
    found.read(cleared_line("x", "whole"))
    assert found.count("x", 1) == 0
    found.read(death_line("x", Death(A, 2, False)))
    assert found.count("x", 3) == 1


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
_ENTRIES = st.fixed_dictionaries(
    {}, optional={"body": _JSON, "engine": _JSON, "at": _JSON, "begun": _JSON, "cleared": _JSON}
)


@given(st.lists(st.binary(max_size=30) | _ENTRIES.map(lambda e: json.dumps(e).encode()) | _JSON.map(
    lambda value: json.dumps(value).encode()
), max_size=6))  # fmt: skip
def test_lines_that_say_nothing_change_nothing(lines: list[bytes]) -> None:
    found = Ledger()
    found.read(b"\n".join([*lines, death_line("good", Death(A, 1.0, False))]))
    assert found.count("good", 2.0) == 1


def test_what_is_kept_is_the_newest_that_fits() -> None:
    found = ledger(*(Death(A, at, False) for at in range(10)))
    (line, *_) = found.lines(10, 10_000)
    kept = [orjson.loads(kept)["at"] for kept in found.lines(10, 3 * len(line))]
    assert kept == [7, 8, 9]


def test_every_worker_sees_what_one_wrote_and_two_deaths_refuse_the_body_alone(tmp_path: Path) -> None:
    one, two = workers(tmp_path, Clock())
    one.died(PATH, POISON, A, begun=False)
    two.died(PATH, POISON, B, begun=False)
    two.died(PATH, INNOCENT, B, begun=False)
    for worker in (one, two):
        with pytest.raises(RequestKillsEnginesError) as refused:
            worker.watch(PATH, POISON).check()
        assert (refused.value.status, refused.value.code) == (400, "request_kills_engines")
        assert worker.watch(PATH, INNOCENT).check() == 1
        assert worker.watch("/v1/completions", POISON).check() == 0


def test_a_refusal_ends_when_its_deaths_are_ten_minutes_old(tmp_path: Path) -> None:
    clock = Clock()
    one, two = workers(tmp_path, clock)
    one.died(PATH, POISON, A, begun=False)
    clock.now += 60
    one.died(PATH, POISON, B, begun=False)
    clock.now += REMEMBERED - 60
    assert two.watch(PATH, POISON).check() == 1
    clock.now += 60
    assert two.watch(PATH, POISON).check() == 0


def test_who_gets_an_answer_is_cleared_for_all_workers(tmp_path: Path) -> None:
    one, two = workers(tmp_path, Clock())
    one.died(PATH, INNOCENT, A, begun=False)
    two.watch(PATH, INNOCENT).whole()
    assert one.watch(PATH, INNOCENT).check() == 0


def test_half_a_line_and_other_rubbish_cost_nothing_else(tmp_path: Path) -> None:
    one, two = workers(tmp_path, Clock())
    one.died(PATH, POISON, A, begun=False)
    with one.file.open("ab") as file:
        file.write(b'\xff\x00{"body": "abc", "eng')
    one.died(PATH, POISON, B, begun=False)
    assert [w.deaths(PATH, POISON) for w in (one, two)] == [2, 2]


def test_the_file_stays_small_and_what_counts_stays_in_it(tmp_path: Path) -> None:
    clock = Clock()
    one, two = workers(tmp_path, clock, largest=4096)
    for number in range(200):
        one.died(PATH, b"%d" % number, A, begun=False)
        clock.now += 4
        assert one.file.stat().st_size < 4096 + 200
        assert two.deaths(PATH, b"%d" % number) == 1
    for worker in (one, two, *workers(tmp_path, clock, 1)):
        assert worker.deaths(PATH, b"199") == 1
        assert worker.deaths(PATH, b"0") == 0


def test_without_a_file_or_a_folder_that_can_be_written_a_worker_still_serves(tmp_path: Path) -> None:
    (tmp_path / "suspects").write_text("a file where the folder should be")
    (worker,) = workers(tmp_path, Clock(), 1)
    assert worker.deaths(PATH, POISON) == 0
    worker.died(PATH, POISON, A, begun=False)
    worker.died(PATH, POISON, B, begun=False)
    assert worker.deaths(PATH, POISON) == 2
    with worker.place(A) as alone:
        assert alone


def test_a_file_that_goes_is_forgotten(tmp_path: Path) -> None:
    (worker,) = workers(tmp_path, Clock(), 1)
    worker.died(PATH, POISON, A, begun=False)
    worker.file.unlink()
    assert worker.deaths(PATH, POISON) == 0


async def test_one_suspect_at_a_time_is_on_an_engine_whichever_worker_has_it(tmp_path: Path) -> None:
    one, two = workers(tmp_path, Clock(), wait_seconds=0)
    for body in (POISON, INNOCENT):
        one.died(PATH, body, A, begun=False)
    first, second, other = one.watch(PATH, POISON), two.watch(PATH, INNOCENT), two.watch(PATH, b"fresh")
    await first.admitted(B)
    await other.admitted(B)
    with pytest.raises(NoEngineError) as held:
        await second.admitted(B)
    assert (held.value.status, dict(held.value.headers)) == (503, {b"retry-after": b"5"})
    await second.admitted(A)
    second.leave()
    first.begun()
    await second.admitted(B)
    second.leave()


async def test_an_innocent_that_waits_for_its_turn_is_not_there_when_the_other_kills_again(
    tmp_path: Path,
) -> None:
    one, two = workers(tmp_path, Clock(), wait_seconds=0)
    for body in (POISON, INNOCENT):
        one.died(PATH, body, A, begun=False)
    poison, innocent = one.watch(PATH, POISON), two.watch(PATH, INNOCENT)
    await poison.admitted(B)
    poison.died(B, begun=False)
    poison.leave()
    await innocent.admitted(B)
    innocent.leave()
    with pytest.raises(RequestKillsEnginesError):
        await two.watch(PATH, POISON).admitted(B)


def test_while_nothing_has_died_no_body_is_digested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    (worker,) = workers(tmp_path, clock, 1)
    worker.died(PATH, POISON, A, begun=False)
    clock.now += REMEMBERED
    monkeypatch.setattr("gateway.relay.suspects.digest", None)
    assert worker.watch(PATH, POISON).check() == 0


def test_a_digest_is_of_the_path_and_the_clients_bytes() -> None:
    assert digest(PATH, POISON) == digest(PATH, bytes(bytearray(POISON)))
    assert len({digest(PATH, POISON), digest(PATH, INNOCENT), digest("/v1/completions", POISON)}) == 3
    assert len(os.fsencode(digest(PATH, POISON))) == 32
