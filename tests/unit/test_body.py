"""A request's body is cut into pieces that join to the same bytes again (D2, D6, P24)."""

import json

import pytest

from dukou.store.body import digest
from gateway.parse.body import read
from gateway.parse.text import loads_exact

MESSAGES = b'{"role": "user", "z": 1.0, "a": 1e2, "content": "x"}'
BODIES = [
    b'{"model":"m","messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}],"stream":true}',
    b'{"messages": [{"role": "user", "content": "a"}, {"content": "b"}], "tools": [{"z": 1, "a": 2}]}',
    b'{"tools":[{"b":{"z":1,"a":[]}}],"messages":[{"content":"only"}]}',
    b' {\n "messages" : [\n  {"a":1} ,\n  {"b":2}\n ]\n , "n" : 1\n}\n',
    b'{"messages":[1, 2,3,\t4]}',  # no two gaps are the same
    b'{"messages":[]}',
    b'{"messages":"none","tools":null}',
    b'{"messages":[1],"messages":[2],"tools":[3],"tools":[4]}',
    b'{"nested":{"messages":[1,2],"tools":[3]},"text":"\\"messages\\":[7]"}',
    b'{"messages":[{"z":12345678901234567890123,"a":1.0,"a":2,"c":1e2}],"d":1,"d":2}',
    b'{"messages":["\\u0000","\\ud800","\xff\xfe"]}',
    b'\xef\xbb\xbf{"messages":["bom"]}',
    '{"messages":[{"content":"渡口 ⛵"}],"x":"é"}'.encode(),
    b'{"a":NaN,"messages":[Infinity,-Infinity]}',
    b"{}",
    b"",
    b"not json",
    b"[1,2]",
    b'{"messages":[1,2]} trailing',
    b'{"messages":[1,2',
    b'{"messages":[1 2]}',
    b"{1:2}",
    b"[" * 100_000,
]


@pytest.mark.parametrize("raw", BODIES)
def test_the_pieces_join_to_exactly_the_same_bytes(raw: bytes) -> None:
    assert digest(read(raw)[1].whole()) == digest(raw)


@pytest.mark.parametrize("raw", BODIES)
def test_the_fields_are_those_of_the_whole_parser(raw: bytes) -> None:
    try:
        expected = loads_exact(raw)
    except ValueError:
        expected = None
    fields = dict(read(raw)[0])
    assert repr(fields) == repr(expected if isinstance(expected, dict) else {})


def test_a_message_is_cut_as_it_was_written() -> None:
    body = read(b'{"messages": [' + MESSAGES + b", " + MESSAGES + b'], "n": 1}')[1]
    assert [piece.body for piece in body.messages or ()] == [MESSAGES, MESSAGES]
    assert (body.rest.body, body.messages_at, body.joint) == (b'{"messages": [], "n": 1}', 14, b", ")


def test_tools_are_a_piece_of_their_own() -> None:
    body = read(b'{"tools": [{"z": 1, "a": 2}], "messages": [1]}')[1]
    assert body.tools is not None
    assert body.tools.body == b'[{"z": 1, "a": 2}]'
    assert body.rest.body == b'{"tools": , "messages": []}'


def test_the_same_image_is_the_same_piece_in_every_request() -> None:
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x," + "A" * 999}}]}
    first = read(json.dumps({"messages": [image]}).encode())[1]
    second = read(json.dumps({"messages": [image, {"role": "user", "content": "and?"}]}).encode())[1]
    assert first.messages is not None
    assert second.messages is not None
    assert first.messages[0].hash == second.messages[0].hash


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (b'"a\\u0000b"', '"a\u2400b"'),
        (b'{"k\\u0000":"\\ud800"}', '{"k\u2400": "\ufffd"}'),
        (b'{"x":NaN}', '{"x": null}'),
        (b'"\xff"', '"\ufffd"'),
        (b'"C:\\\\u0000dir"', None),
        (b'"\\ud83d\\ude00"', None),
        (b'"NaN"', None),
    ],
)
def test_only_what_postgres_cannot_read_is_shown_otherwise(message: bytes, shown: str | None) -> None:
    body = read(b'{"messages":[' + message + b"]}")[1]
    assert body.messages is not None
    assert (body.messages[0].body, body.messages[0].readable) == (message, shown)
    assert body.altered == (shown is not None)
