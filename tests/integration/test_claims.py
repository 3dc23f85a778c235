"""Claims of many at once: none is skipped, nobody waits for another, the dead give way (D1, D8, D14, D20)."""

from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import Engine, text

from dukou.store import states, turns
from dukou.store.states import Stage
from tests.fakes.turns import add_turn, turn_id


def claim(db: Engine, owner: str = "scorer", seconds: float = 60) -> states.Claim | None:
    with db.begin() as connection:
        return states.claim_scorable(connection, owner, seconds)


def test_a_turn_that_commits_late_is_claimed_all_the_same(db: Engine) -> None:
    """D1: no cursor passes it by, whatever was claimed before."""
    with db.connect() as late:
        add_turn(late, 1, Stage.SCORABLE, tenant="late")
        with db.begin() as connection:
            add_turn(connection, 2, Stage.SCORABLE)
        first = claim(db)
        assert first is not None
        assert first.turn_id == turn_id(2)
        late.commit()
    second = claim(db)
    assert second is not None
    assert second.turn_id == turn_id(1)
    assert claim(db) is None


def test_a_rolled_back_turn_stalls_nobody(db: Engine) -> None:
    with db.connect() as connection:
        add_turn(connection, 1, Stage.SCORABLE)
        connection.rollback()
    with db.begin() as connection:
        add_turn(connection, 2, Stage.SCORABLE)
    assert claim(db) is not None


def test_scorers_at_once_take_every_turn_once_without_a_deadlock(db: Engine) -> None:
    """D20: one of them died with a lease that is over."""
    with db.begin() as connection:
        for number in range(1, 61):
            add_turn(connection, number, Stage.SCORABLE)
    assert claim(db, "killed", seconds=0) is not None

    def score(owner: str) -> list[object]:
        taken: list[object] = []
        while (mine := claim(db, owner)) is not None:
            with db.begin() as connection:
                states.finish(connection, mine, Stage.SCORED, None)
            taken.append(mine.turn_id)
        return taken

    with ThreadPoolExecutor(4) as pool:
        taken = [turn for some in pool.map(score, "abcd") for turn in some]
    assert sorted(map(str, taken)) == sorted(str(turn_id(number)) for number in range(1, 61))


def test_a_claim_reads_the_partial_index_and_not_the_table(db: Engine) -> None:
    """D14: finished turns cost nothing, however many there are."""
    with db.begin() as connection:
        for number in range(1, 200):
            add_turn(connection, number, Stage.TRAINED)
        add_turn(connection, 200, Stage.SCORABLE)
        connection.execute(text("set local enable_seqscan = off"))  # 200 rows are few: what could be used?
        plan = connection.execute(
            text(
                "explain (analyze, costs off, timing off) select turn_id from turn_states"
                " where stage = 'scorable' and (lease_until is null or lease_until < now())"
                " order by turn_id limit 1 for update skip locked"
            )
        )
        lines = "\n".join(row[0] for row in plan)
    assert "Seq Scan" not in lines
    assert "Rows Removed by Filter" not in lines


def test_writing_a_turn_notifies_nobody(db: Engine) -> None:
    """D8: no trigger and no NOTIFY can take a turn back, however long its text is."""
    with db.begin() as connection:
        add_turn(connection, 1, Stage.SCORABLE, said="é" * 10_000)
        assert connection.scalar(text("select count(*) from pg_trigger where not tgisinternal")) == 0
        assert turns.recorded(connection, [turn_id(1)]) == {turn_id(1)}
