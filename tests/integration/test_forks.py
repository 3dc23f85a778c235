"""Edits and regenerations, from the client's requests to the reward: spool, lineage and scorer."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, text

from dukou.store.scores import Score, record
from dukou.store.tables import demonstrations, scores
from learner.score.edits import corrected
from learner.score.forks import OVERLAP, Forks, apply_edits
from tests.fakes.ferry import Ferry
from tests.fakes.spooled import assistant, user

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAMED = {"session": {"id": "chat", "source": "x-session-id"}}
DONE = {"session_done": True}
WRONG = "The capital of Australia is Sydney, a city by the sea."
RIGHT = "The capital of Australia is Canberra, a city in the hills."
QUESTION = user("What is the capital of Australia?")


@pytest.fixture
def ferry(tmp_path, db):
    return Ferry(tmp_path, db)


def scored(ferry, turn):
    query = select(scores.c.value, scores.c.reason, scores.c.rubric).where(scores.c.turn_id == turn)
    with ferry.database.connect() as connection:
        return [tuple(row) for row in connection.execute(query)]


def demonstrated(ferry):
    query = select(demonstrations.c.turn_id, demonstrations.c.source, demonstrations.c.answer)
    with ferry.database.connect() as connection:
        return [tuple(row) for row in connection.execute(query)]


def edit(ferry, opening=(), **more):
    """The turn whose answer the user rewrites before going on."""
    turn = ferry.say([*opening, QUESTION], WRONG, **more)
    ferry.say([*opening, QUESTION, assistant(RIGHT), user("And of Chile?")], "Santiago.", **more | DONE)
    ferry.give_up_waiting()
    return turn


def test_an_edited_answer_fell_short_and_its_correction_is_kept(ferry):
    turn = edit(ferry, **NAMED)
    assert ferry.state(turn)[:2] == ("dropped", "no_next_state")
    assert apply_edits(ferry.database, EPOCH, EPOCH) == 1
    assert scored(ferry, turn) == [(-1.0, "edited", "edits@2")]
    assert demonstrated(ferry) == [(turn, "edit", RIGHT)]
    assert ferry.state(turn)[:2] == ("scored", None)
    with ferry.database.connect() as connection:
        pair = connection.execute(text("select rejected, chosen, because from preference")).one()
    assert tuple(pair) == (WRONG, RIGHT, "corrected")
    assert apply_edits(ferry.database, EPOCH, EPOCH) == 0


def test_an_edit_deep_in_a_conversation_needs_no_session_id(ferry):
    opening = [user("Shall we talk about geography today?"), assistant("Gladly! Where shall we begin?")]
    first = ferry.say(opening[:1], opening[1]["content"])
    turn = edit(ferry, opening)
    assert ferry.row(turn).parent_id == first
    assert apply_edits(ferry.database, EPOCH, EPOCH) == 1
    assert scored(ferry, first) == []
    assert scored(ferry, turn) == [(-1.0, "edited", "edits@2")]


def test_an_edited_question_is_no_evidence(ferry):
    turn = ferry.say([QUESTION], WRONG, **NAMED)
    ferry.say([user("What is the capital of Austria?")], "Vienna.", **NAMED | DONE)
    ferry.give_up_waiting()
    assert Forks(ferry.database).apply(moment(ferry)) == 0
    assert (scored(ferry, turn), demonstrated(ferry)) == ([], [])
    assert ferry.state(turn)[:2] == ("dropped", "no_next_state")


def test_a_judges_score_outranks_an_edit_that_was_seen_before_it(ferry):
    turn = edit(ferry, **NAMED)
    assert apply_edits(ferry.database, EPOCH, EPOCH) == 1
    with ferry.database.begin() as connection:
        record(connection, turn, "llm", "default@1", Score(1.0, "majority"), injection_suspected=False)
    with ferry.database.connect() as connection:
        counted = connection.execute(
            text("select score, score_reason from trajectory where turn_id = :turn"), {"turn": turn}
        ).one()
    assert tuple(counted) == (1.0, "majority")


def moment(ferry):
    return datetime.fromtimestamp(ferry.clock, UTC)


def test_each_session_is_looked_at_when_it_ends_and_not_for_ever(ferry, monkeypatch):
    looks = []

    def counting(asked, answer, later):
        looks.append(answer)
        return corrected(asked, answer, later)

    monkeypatch.setattr("learner.score.forks.corrected", counting)
    forks = Forks(ferry.database)
    ferry.say([QUESTION], WRONG, **NAMED)
    ferry.say([QUESTION, assistant("Something else."), user("And?")], "Yes.", **NAMED | DONE)
    ferry.give_up_waiting()
    assert forks.apply(moment(ferry)) == 0
    assert looks == [WRONG]
    ferry.clock += OVERLAP.total_seconds() * 2
    forks.apply(moment(ferry))  # … and from here on
    ferry.clock += OVERLAP.total_seconds() * 2
    forks.apply(moment(ferry))
    seen = len(looks)
    ferry.clock += 1
    assert forks.apply(moment(ferry)) == 0
    assert len(looks) == seen
    turn = edit(ferry, session={"id": "other", "source": "x-session-id"})
    assert forks.apply(moment(ferry) + timedelta(seconds=1)) == 1
    assert scored(ferry, turn) == [(-1.0, "edited", "edits@2")]


def test_an_edit_of_the_first_answer_needs_no_session_id_either(ferry):
    turn = edit(ferry)
    assert apply_edits(ferry.database, EPOCH, EPOCH) == 1
    assert scored(ferry, turn) == [(-1.0, "edited", "edits@2")]
    assert len({row.session_id for row in ferry.rows()}) == 1


def test_two_conversations_that_began_alike_are_not_joined_by_an_edit(ferry):
    other = ferry.say([QUESTION], "Perth.")
    ferry.say([QUESTION, assistant("Perth."), user("Sure?")], "No.")
    turn = edit(ferry)
    assert apply_edits(ferry.database, EPOCH, EPOCH) == 0
    assert len({row.session_id for row in ferry.rows()}) == 3
    assert ferry.row(other).session_id != ferry.row(turn).session_id
