"""W5: a request that an engine aborted is never shown or trained as an answer that ended by itself."""

import orjson
import pytest

from gateway.drain.assemble import assemble
from gateway.relay.capture import cuts_of
from gateway.relay.filter import StreamFilter, filter_body
from gateway.spool.format import Kind, Record
from tests.fakes.spooled import reply_body, reply_meta, request_body, request_meta, turn_id, user
from tests.fakes.upstream import DONE, chunk, event

ADDED = ["return_input_ids_in_sglext", "return_output_ids_in_sglext", "logprobs"]
TURN = turn_id(1000.0)


@pytest.mark.parametrize("text", ["", "half of"])
def test_in_a_stream_the_client_sees_that_it_was_aborted(text: str) -> None:
    stream = event(chunk({"content": text})) + event(chunk({}, "abort")) + DONE
    shown = StreamFilter(cuts_of(ADDED, None))
    lines = (shown.feed(stream) + shown.end()).split(b"\n\n")
    reasons = [
        choice["finish_reason"]
        for line in lines
        if line.startswith(b"data: {")
        for choice in orjson.loads(line[6:])["choices"]
    ]
    assert [reason for reason in reasons if reason] == ["abort"]


@pytest.mark.parametrize("text", ["", "half of"])
def test_without_a_stream_it_is_aborted_for_client_and_trainer(text: str) -> None:
    body = reply_body(text, finish="abort")
    (choice,) = orjson.loads(filter_body(body, cuts_of(ADDED, None)))["choices"]
    assert choice["finish_reason"] == "abort"
    asked = Record(Kind.REQUEST, request_meta(TURN, 1000.0), request_body([user("hi")]))
    (row,) = assemble(asked, Record(Kind.REPLY, reply_meta(TURN, 1001.0), body), 1).rows
    assert (row.finish_reason, row.untrainable_reason) == ("abort", "status")
