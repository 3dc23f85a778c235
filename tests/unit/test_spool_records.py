"""What a worker tells the drainer: typed on both sides, and readable across versions."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.spool import format as spool
from gateway.spool.format import Kind, Record
from gateway.spool.records import (
    FeedbackRecord,
    RecordError,
    Remains,
    ReplyRecord,
    RequestRecord,
    StatedSession,
    decode_turn,
)
from tests.fakes.spooled import reply_meta, request_meta, turn_id

TURN = turn_id(1000.0)
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
_TIME = st.integers(1, 2**60)
_OBJECT = st.dictionaries(_TEXT, st.none() | _TEXT | st.integers(-5, 5), max_size=2)
REQUESTS = st.builds(
    RequestRecord,
    id=_TEXT,
    at_ns=_TIME,
    tenant=_TEXT,
    path=_TEXT,
    body=st.binary(max_size=9),
    key_id=st.none() | _TEXT,
    headers=st.dictionaries(_TEXT.map(str.lower), _TEXT, max_size=2),
    session=st.none() | st.builds(StatedSession, _TEXT, _TEXT),
    turn_type=st.sampled_from([None, "main", "side"]),
    session_done=st.booleans(),
    parent=st.none() | st.just(TURN),
    engine=st.none() | st.just("http://engine"),
    added=st.lists(_TEXT, max_size=2).map(tuple),
    stream=st.booleans(),
)
REPLIES = st.builds(
    ReplyRecord,
    id=_TEXT,
    outcome=_TEXT,
    body=st.binary(max_size=9),
    http_status=st.none() | st.integers(100, 599),
    first_byte_ns=st.none() | _TIME,
    finished_ns=st.none() | _TIME,
    version_min=st.none() | st.integers(0, 9),
    version_max=st.none() | st.integers(0, 9),
    engine=st.none() | st.just("http://engine"),
    adapter=st.none() | _TEXT,
    sampling_defaults=st.none() | _OBJECT,
    tool_calling=st.none() | _OBJECT,
    error=st.none() | st.just("broken"),
)
FEEDBACK = st.builds(
    FeedbackRecord,
    id=_TEXT,
    at_ns=_TIME,
    tenant=_TEXT,
    key_id=st.none() | _TEXT,
    turn_id=st.none() | _TEXT,
    session_id=st.none() | _TEXT,
    choice_index=st.integers(0, 3),
    rating=st.sampled_from([None, -1, 0, 1]),
    score=st.sampled_from([None, -1.0, 0.25]),
    comment=st.none() | _TEXT,
    correction=st.none() | _TEXT,
    outcome=st.none() | _OBJECT,
    user=st.none() | _TEXT,
)


@given(st.one_of(REQUESTS, REPLIES, FEEDBACK))
def test_a_record_comes_back_from_disk_as_it_was(record: RequestRecord | ReplyRecord | FeedbackRecord):
    said = record.encode()
    found = spool.decode(spool.encode(said.kind, said.meta, said.body))
    assert found is not None
    assert type(record).decode(found[0]) == record


def request(**changes: Any) -> RequestRecord:
    return RequestRecord.decode(Record(Kind.REQUEST, request_meta(TURN, 1000.0, **changes), b"{}"))


def reply(**changes: Any) -> ReplyRecord:
    return ReplyRecord.decode(Record(Kind.REPLY, reply_meta(TURN, 1001.0, **changes), b"{}"))


def test_fields_that_an_earlier_version_did_not_write_are_filled_in():
    meta = {"id": TURN, "at_ns": 7, "tenant": "t", "path": "/v1/models"}
    found = RequestRecord.decode(Record(Kind.REQUEST, meta, b""))
    assert found == RequestRecord(id=TURN, at_ns=7, tenant="t", path="/v1/models", body=b"")
    assert ReplyRecord.decode(Record(Kind.REPLY, {"id": TURN}, b"")) == ReplyRecord(id=TURN)
    assert ReplyRecord(id=TURN).outcome == "interrupted"


def test_fields_that_a_later_version_wrote_are_ignored():
    assert request(weather="fine") == request()
    assert reply(weather="fine") == reply()


@pytest.mark.parametrize("name", ["id", "at_ns", "tenant", "path"])
def test_a_request_without_a_field_that_all_have_is_refused_by_its_name(name):
    meta = request_meta(TURN, 1000.0)
    del meta[name]
    with pytest.raises(RecordError, match=f"^{name}: nothing where"):
        RequestRecord.decode(Record(Kind.REQUEST, meta, b""))


@pytest.mark.parametrize(
    "changes",
    [
        {"at_ns": None},
        {"at_ns": "now"},
        {"key_id": True},
        {"headers": "x"},
        {"session": "s"},
        {"parent": [1]},
    ],
)
def test_a_wrong_type_in_a_request_is_refused_by_the_fields_name(changes):
    (name,) = changes
    with pytest.raises(RecordError, match=f"^{name}: a ") as caught:
        request(**changes)
    assert caught.value.field == name


@pytest.mark.parametrize(
    "changes",
    [
        {"first_byte_ns": "x"},
        {"finished_ns": [1]},
    ],
)
def test_a_wrong_type_in_a_reply_is_refused_by_the_fields_name(changes):
    (name,) = changes
    with pytest.raises(RecordError, match=f"^{name}: a "):
        reply(**changes)


@pytest.mark.parametrize(("lacking", "wrong"), [("source", {"id": "s"}), ("id", {"source": "path"})])
def test_a_session_without_id_or_source_is_refused(lacking, wrong):
    with pytest.raises(RecordError, match=lacking):
        request(session=wrong)


@pytest.mark.parametrize(
    ("changes", "name", "value"),
    [
        ({"tenant": [1]}, "tenant", "[1]"),
        ({"path": None}, "path", "None"),
        ({"headers": {"X-A": 1}}, "headers", {"x-a": "1"}),
        ({"headers": []}, "headers", {}),
        ({"session": {}}, "session", None),
        ({"stream": "yes"}, "stream", True),
        ({"turn_type": {}}, "turn_type", None),
        ({"parent": 0}, "parent", None),
        ({"at_ns": 5.5}, "at_ns", 5),
    ],
)
def test_a_wrong_type_that_never_did_harm_in_a_request_still_does_none(changes, name, value):
    assert getattr(request(**changes), name) == value


@pytest.mark.parametrize(
    ("changes", "name", "value"),
    [
        ({"version_min": "3"}, "version_min", None),
        ({"adapter": 5}, "adapter", None),
        ({"sampling_defaults": []}, "sampling_defaults", None),
        ({"tool_calling": "qwen"}, "tool_calling", None),
        ({"error": 500}, "error", "500"),
        ({"error": {}}, "error", None),
        ({"outcome": 7}, "outcome", "7"),
        ({"first_byte_ns": []}, "first_byte_ns", None),
    ],
)
def test_a_wrong_type_that_never_did_harm_in_a_reply_still_does_none(changes, name, value):
    assert getattr(reply(**changes), name) == value


def test_a_turn_without_a_reply_was_interrupted():
    asked = Record(Kind.REQUEST, request_meta(TURN, 1000.0), b"")
    assert decode_turn(asked, None)[1] == ReplyRecord(id=TURN, outcome="interrupted")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"'])
def test_feedback_whose_body_is_no_object_is_refused(body):
    meta = {"id": TURN, "at_ns": 1, "tenant": "t"}
    with pytest.raises(RecordError, match=r"^body: "):
        FeedbackRecord.decode(Record(Kind.FEEDBACK, meta, body))


@pytest.mark.parametrize("said", [b'{"rating": "good"}', b'{"score": "1"}', b'{"outcome": 1}'])
def test_a_wrong_type_in_feedback_is_refused_by_the_fields_name(said):
    meta = {"id": TURN, "at_ns": 1, "tenant": "t"}
    with pytest.raises(RecordError, match=r"^(rating|score|outcome): a "):
        FeedbackRecord.decode(Record(Kind.FEEDBACK, meta, said))


def test_what_remains_of_records_that_cannot_be_decoded_is_what_has_its_type():
    asked = Record(Kind.REQUEST, request_meta(TURN, 1000.0, tenant=5, at_ns=None, stream="yes"), b"")
    answered = Record(Kind.REPLY, reply_meta(TURN, 1001.0, outcome=1, http_status=True, engine=[]), b"")
    assert Remains.of(asked, answered) == Remains(
        tenant=None,
        key_id="k1",
        path="/v1/chat/completions",
        stream=False,
        engine="http://engine",
        outcome=None,
        http_status=None,
    )
    assert Remains.of(asked, None).outcome is None
