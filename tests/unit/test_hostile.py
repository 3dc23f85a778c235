"""Whatever a client sends and an engine answers: a turn is made of it, and has its place."""

from dataclasses import replace
from datetime import timedelta

from hypothesis import example, given, settings

from dukou.store.earlier import Earlier
from dukou.store.turn_rows import Place
from gateway.drain.assemble import Draft, assemble
from gateway.drain.relink import orphan_of
from gateway.lineage import place as lineage
from gateway.lineage.place import EarlierTurns
from gateway.spool.format import Kind, Record
from tests.fakes.grammar import REPLIES, REQUESTS
from tests.fakes.spooled import assistant, reply_body, reply_meta, request_body, request_meta, turn_id, user

MANY = 10 * settings.default.max_examples  # 1,000 of each where the seed is fixed
STRING_AS_MESSAGE = (
    b'{"model":"m","messages":["hello",{"role":"assistant","content":"x"},{"role":"user","content":"y"}]}'
)
ASSISTANT_FIRST = (
    b'{"messages":[{"role":"assistant","content":"x"},{"role":"user","content":"' + b"y" * 40 + b'"}]}'
)


def drafted(request: bytes, reply: bytes, at: float = 1.7e9) -> Draft:
    turn = turn_id(at)
    return assemble(
        Record(Kind.REQUEST, request_meta(turn, at), request),
        Record(Kind.REPLY, reply_meta(turn, at + 1), reply),
        1,
    )


def earlier(draft: Draft) -> EarlierTurns:
    """The turn as those after it may find it."""
    found = []
    for row in draft.rows:
        where = Place(session_id=row.id.hex, session_source="new", segment_id=row.id)
        before = row.started_at - timedelta(hours=1)
        found.append(replace(Earlier.of(row, where), started_at=before, finished_at=row.started_at))
    return EarlierTurns(found)


GOOD_REQUEST = request_body([user("What is a bee?"), assistant("the answer"), user("tell me more")])
GOOD_REPLY = reply_body("z")


@settings(max_examples=MANY)
@given(REQUESTS)
@example(STRING_AS_MESSAGE)
@example(ASSISTANT_FIRST)
def test_any_request_makes_a_turn_that_has_a_place(request: bytes) -> None:
    check(request, GOOD_REPLY)


@settings(max_examples=MANY)
@given(REPLIES)
@example(GOOD_REPLY.replace(b'"index": 0', b'"index": 1099511627776'))
def test_any_reply_makes_a_turn_that_has_a_place(reply: bytes) -> None:
    check(GOOD_REQUEST, reply)


def check(request: bytes, reply: bytes) -> None:
    draft = drafted(request, reply)
    assert draft.rows
    for row in draft.rows:
        assert 0 <= row.choice_index < 2**31
        assert (row.untrainable_reason is None) <= (row.status == "ok")
    known = earlier(drafted(request, reply, 1.6e9))
    assert lineage.place(draft.request, known).session_id
    lineage.misses_something(draft.request, known)
    lineage.continues_summary(draft.request, known.by_prompt(draft.request.prompt_hash))
    assert orphan_of(draft).turn_id == draft.request.id


def test_a_text_in_place_of_a_message_is_no_one_elses_question() -> None:
    asked = drafted(STRING_AS_MESSAGE, reply_body("z")).request
    same = earlier(drafted(request_body(["hello"]), reply_body("another answer"), 1.6e9))
    assert lineage.place(asked, same).session_source == "new"


def test_an_answer_that_begins_a_request_has_no_question_before_it() -> None:
    """Not even the last message of the request, which is long enough to be one."""
    last = user("y" * 40)
    asked = drafted(request_body([assistant("x"), last]), reply_body("z")).request
    same = earlier(drafted(request_body([]), reply_body("w"), 1.6e9))
    assert lineage.place(asked, same).session_id == asked.id.hex
