"""An answer that comes back with differences that no reader can see: one conversation, and no complaint."""

from datetime import UTC, datetime
from uuid import UUID

import pytest
from sqlalchemy import func, select

from dukou.store.tables import demonstrations, scores
from gateway.lineage import canonical
from learner.score.forks import Forks
from tests.fakes.ferry import Ferry
from tests.fakes.spooled import assistant, system, user

QUESTION = "Wie heißt die Hauptstadt\nvon Österreich, Zoë?"
ANSWER = "Österreichs Hauptstadt heißt Wien:\n\n    grüße Wien\nSie liegt an der Donau."
NAMED = {"session": {"id": "chat", "source": "x-session-id"}}
RENDERINGS = {
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "cr": lambda text: text.replace("\n", "\r"),
    "decomposed": lambda text: text.replace("ö", "o\u0308").replace("Ö", "O\u0308").replace("ü", "u\u0308"),
    "trailing blanks": lambda text: text.replace("\n", " \t\n") + "  ",
    "no-break spaces": lambda text: text.replace(" Wien", "\u00a0Wien"),
    "byte order mark": lambda text: "\ufeff" + text,
    "soft hyphens": lambda text: text.replace("Haupt", "Haupt\u00ad"),
    "zero width": lambda text: text.replace(" ", "\u200b "),
}
named_or_not = pytest.mark.parametrize("names", [True, False], ids=["session id", "no session id"])


@pytest.fixture
def ferry(tmp_path, db):
    return Ferry(tmp_path, db)


def evidence(ferry):
    """How many scores and demonstrations there are once all sessions have ended."""
    Forks(ferry.database).apply(datetime.fromtimestamp(ferry.clock, UTC))
    with ferry.database.connect() as connection:
        return [
            connection.scalar(select(func.count()).select_from(each)) for each in (scores, demonstrations)
        ]


def come_back(ferry, names, said):
    """Every rendering in a session of its own: the turn, and the one that brings `said` back in its place."""
    turns = {}
    for name, shown in RENDERINGS.items():
        more = {"session": {"id": name, "source": "x-session-id"}} if names else {}
        question = f"{name}: {QUESTION}"
        first = ferry.say([user(question)], ANSWER, **more)
        later = [user(shown(question)), assistant(shown(said)), user("Danke!")]
        turns[first] = ferry.say(later, "Gern.", session_done=True, **more)
    ferry.give_up_waiting()
    return turns


@named_or_not
def test_an_answer_that_was_rendered_anew_is_gone_on_from_and_no_edit(ferry, names):
    for turn, following in come_back(ferry, names, ANSWER).items():
        assert ferry.row(following).parent_id == turn
        assert ferry.state(turn) == ("scorable", None, following)
    assert evidence(ferry) == [0, 0]


@named_or_not
def test_a_word_that_was_changed_on_the_same_way_is_an_edit(ferry, names):
    turns = come_back(ferry, names, ANSWER.replace("Donau", "Wien"))
    assert evidence(ferry) == [len(turns), len(turns)]
    with ferry.database.connect() as connection:
        found = connection.execute(select(scores.c.turn_id, scores.c.value, scores.c.reason)).all()
    assert {tuple(row) for row in found} == {(turn, -1.0, "edited") for turn in turns}


def test_a_stopped_answer_whose_last_accent_was_cut_off_is_the_parent(ferry):
    stopped = UUID(ferry.worker.ask(ferry.clock, [user("tell")]))
    ferry.worker.answer(stopped.hex, ferry.clock + 0.5, "Grüße aus Zoë", outcome="client_disconnect")
    following = ferry.say([user("tell"), assistant("Gru\u0308ße\u00a0aus Zoe"), user("go on")])
    ferry.drain()
    assert ferry.row(following).parent_id == stopped


def test_a_request_that_was_rendered_anew_is_a_regeneration(ferry):
    first = ferry.say([user(QUESTION)], "A")
    again = ferry.say([user(RENDERINGS["crlf"](QUESTION))], "B")
    following = ferry.say([user(QUESTION), assistant("B"), user("more")], session_done=True)
    ferry.give_up_waiting()
    assert len({row.session_id for row in ferry.rows()}) == 1
    assert ferry.row(following).parent_id == again
    assert evidence(ferry) == [1, 0]
    with ferry.database.connect() as connection:
        assert connection.execute(select(scores.c.turn_id, scores.c.reason)).one() == (first, "regenerated")


def test_an_answer_that_reads_as_the_one_gone_on_from_did_not_fall_short(ferry):
    ferry.say([user("q")], ANSWER)
    ferry.say([user("q")], RENDERINGS["decomposed"](ANSWER))
    ferry.say([user("q"), assistant(ANSWER), user("more")], session_done=True)
    ferry.give_up_waiting()
    assert evidence(ferry) == [0, 0]


def test_a_summary_is_found_where_it_is_quoted_with_other_line_ends(ferry):
    history = [user("1")]
    first = ferry.say(history, "A1")
    history += [assistant("A1"), user("Summarise the conversation so far")]
    ferry.say(history, ANSWER)
    compacted = ferry.say([user(f"So far:\r\n{RENDERINGS['crlf'](ANSWER)}"), user("7")], "A7")
    ferry.drain()
    assert ferry.row(compacted).session_id == ferry.row(first).session_id


@pytest.fixture
def formerly(monkeypatch, ferry):
    """Turns as the version before wrote them: what nobody can see counts in their digests."""

    def say(*turns, **more):
        with monkeypatch.context() as before:
            before.setattr(canonical, "visible", lambda text: text)
            said = [ferry.say(*turn, **more) for turn in turns]
            ferry.drain()
        return said

    return say


OPENING = [system("Be brief. \nEnd."), user(QUESTION + " ")]
CRLF = RENDERINGS["crlf"]


@named_or_not
def test_a_conversation_goes_on_over_the_upgrade(ferry, formerly, names):
    more = NAMED if names else {}
    second = [*OPENING, assistant(CRLF(ANSWER)), user("2 \n?")]
    old = formerly((OPENING, CRLF(ANSWER)), (second, "B"), **more)
    third = [*second, assistant("B"), user("3")]
    new = [ferry.say(third, "C \nc", **more)]
    new.append(ferry.say([*third, assistant("C\nc"), user("4")], "D", session_done=True, **more))
    ferry.drain()
    assert [ferry.row(turn).parent_id for turn in (*old, *new)] == [None, *old, new[0]]
    assert len({row.session_id for row in ferry.rows()}) == 1
    assert evidence(ferry) == [0, 0]


@named_or_not
def test_an_answer_of_before_that_only_now_comes_back_otherwise_is_no_complaint(ferry, formerly, names):
    """Its parent is looked for by the digests that this rendering would have had: there is none."""
    more = NAMED if names else {}
    formerly((OPENING, CRLF(ANSWER)), **more)
    ferry.say([*OPENING, assistant(ANSWER), user("2")], session_done=True, **more)
    ferry.give_up_waiting()
    assert evidence(ferry) == [0, 0]


def test_a_window_of_a_conversation_goes_on_over_the_upgrade(ferry, formerly):
    history = [*OPENING, assistant(CRLF(ANSWER)), user("2 \n?")]
    old = formerly((OPENING, CRLF(ANSWER)), (history, "B  \nb, and so on and on"))
    new = ferry.say([*history[1:], assistant("B  \nb, and so on and on"), user("3")])
    ferry.give_up_waiting()
    assert ferry.row(new).parent_id == old[1]


def test_a_request_of_before_is_repeated_after_the_upgrade(ferry, formerly):
    [old] = formerly((OPENING, "A"), headers={"idempotency-key": "once"})
    new = ferry.say(OPENING, "B", headers={"idempotency-key": "once"})
    ferry.drain()
    assert ferry.row(new).retry_of == old
