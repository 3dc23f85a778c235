"""Lineage at length: random histories (T16), several workers and gateways (T17), sub-agents (T9)."""

import random
from uuid import UUID

import pytest
from sqlalchemy import select

from dukou.store.tables import sessions, turns
from tests.fakes.ferry import Ferry
from tests.fakes.spooled import assistant, system, user
from tests.fakes.walk import Chat, Walk


@pytest.mark.parametrize("seed", range(2))
def test_t16_no_turn_is_ever_attached_to_a_wrong_chat(tmp_path, db, seed):
    """500 operations over 20 chats and three workers, drained now and then."""
    ferry, dice = Ferry(tmp_path, db, max_turns=1000), random.Random(seed)
    walk = Walk(
        ferry, dice, [ferry.worker, ferry.new_worker(), ferry.new_worker()], [Chat(n) for n in range(20)]
    )
    for _ in range(500):
        walk.go()
        if dice.random() < 0.1:
            ferry.drain()
    ferry.give_up_waiting()
    found = {row.id: row for row in placed(db)}
    assert {turn: row.parent_id for turn, row in found.items()} == {
        turn: parent for turn, (_, parent) in walk.truth.items()
    }
    chats_of: dict[str, set[int | None]] = {}
    for turn, row in found.items():
        chats_of.setdefault(row.session_id, set()).add(walk.truth[turn][0])
    assert all(len(chats) == 1 for chats in chats_of.values())
    home = {walk.truth[turn][0]: row.session_id for turn, row in found.items() if row.session_source == "new"}
    kept = [turn for turn in walk.compacted if found[turn].session_id == home[walk.truth[turn][0]]]
    assert len(kept) >= 0.95 * len(walk.compacted) > 10


def test_t17_every_chain_holds_over_four_workers_two_gateways_and_restarts(tmp_path, db):
    """200 conversations of 5 turns; each turn comes by any worker of any gateway, 5 ms after the last.

    The second gateway's drainer lags for longer than anybody waits: what it brings late is put in place.
    """
    dice = random.Random(17)
    gateways = [Ferry(tmp_path / name, db) for name in ("a", "b")]
    workers = [
        worker for ferry in gateways for worker in (ferry.worker, *(ferry.new_worker() for _ in range(3)))
    ]
    at, chains = gateways[0].clock, [list[UUID]() for _ in range(200)]
    histories = [[system("S"), user(f"1 of {number}")] for number in range(200)]
    for turn in range(5):
        for number, (history, chain) in enumerate(zip(histories, chains, strict=True)):
            begin = at + turn + number / 1000
            asked = dice.choice(workers).turn(begin - 0.505, history, f"answer {turn} of {number}")
            chain.append(UUID(asked))
            history += [assistant(f"answer {turn} of {number}"), user(f"more {turn}")]
        gateways[0].clock = at + turn + 1
        gateways[0].drain()
        gateways[0].drainer = gateways[0].new_drainer()
        if turn == 2:
            gateways[1].clock = at + turn + 1
            gateways[1].drain()
    for ferry in gateways:
        ferry.clock = at + 60
        ferry.give_up_waiting()
    found = {row.id: row for row in placed(db)}
    assert [[found[turn].parent_id for turn in chain] for chain in chains] == [
        [None, *chain[:-1]] for chain in chains
    ]
    assert all(len({found[turn].session_id for turn in chain}) == 1 for chain in chains)
    assert all(len({found[turn].segment_id for turn in chain}) == 1 for chain in chains)
    assert all([found[turn].ordinal for turn in chain] == list(range(5)) for chain in chains)
    with db.connect() as connection:
        assert len(connection.execute(select(sessions)).all()) == 200


def test_t9_interleaved_sub_agents_of_one_session_id_never_mix(tmp_path, db):
    """Fifty times: the parent and two sub-agents under one id, their requests in flight at the same time."""
    ferry, dice = Ferry(tmp_path, db), random.Random(9)
    workers = [ferry.worker, ferry.new_worker()]
    expected: dict[UUID, UUID | None] = {}
    for run in range(50):
        chat = {"session": {"id": f"p{run}", "source": "x-session-id"}}
        histories = [[system(name), user("go")] for name in ("main", "agent 1", "agent 2")]
        last: list[UUID | None] = [None, None, None]
        for turn in range(3):
            ferry.clock += 2
            order = dice.sample(range(3), 3)
            by = [dice.choice(workers) for _ in range(3)]
            asked = {n: by[n].ask(ferry.clock + n / 10, histories[n], **chat) for n in order}
            for n in dice.sample(range(3), 3):
                by[n].answer(asked[n], ferry.clock + 1, f"A{turn}")
                expected[UUID(asked[n])], last[n] = last[n], UUID(asked[n])
                histories[n] += [assistant(f"A{turn}"), user("next")]
            if dice.random() < 0.2:
                ferry.drain()
    ferry.give_up_waiting()
    rows = placed(db)
    assert {row.id: row.parent_id for row in rows} == expected
    of_session: dict[str, set[UUID]] = {}
    for row in rows:
        of_session.setdefault(row.session_id, set()).add(row.segment_id)
    assert len(of_session) == 50
    assert all(len(segments) == 3 for segments in of_session.values())


def placed(db):
    """What lineage decided, of every turn; without its contents."""
    names = ("id", "parent_id", "session_id", "segment_id", "session_source", "ordinal", "kind")
    with db.connect() as connection:
        return connection.execute(select(*(turns.c[name] for name in names))).all()
