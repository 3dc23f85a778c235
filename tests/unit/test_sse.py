from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.parse.stream import Parser

STREAM = (
    b"\xef\xbb\xbf: hello\n\n"
    b'data: {"a": "\xe9\x82\xa3\xe2\x80\xa8x"}\r\n\r\n'
    b": data: [DONE]\r\n"
    b"data:\n\ndata: \n\n"
    b"event: error\rdata: one\rdata: two\r\r"
    b"id: 7\nretry: 10\nunknown\n\n"
    b"data: last"
)
EVENTS = [
    (b"", '{"a": "那\u2028x"}'.encode()),
    (b"error", b"one\ntwo"),
    (b"", b"last"),
]


def parse(chunks):
    parser = Parser()
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return events + parser.close()


def test_all_line_ends_comments_and_multi_line_data_are_understood():
    """S5."""
    assert parse([STREAM]) == EVENTS


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_cuts_change_nothing(cuts):
    """S1."""
    edges = [0, *sorted(cuts), len(STREAM)]
    chunks = [STREAM[start:end] for start, end in pairwise(edges)]
    assert parse(chunks) == EVENTS


def test_byte_by_byte_is_the_same():
    """S1."""
    assert parse([STREAM[at : at + 1] for at in range(len(STREAM))]) == EVENTS


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_an_event_is_there_as_soon_as_its_blank_line_is(end):
    assert Parser().feed(b"data: x" + end + end) == [(b"", b"x")]


def test_a_long_line_in_many_pieces_is_one_event():
    chunks = [b"data: ", *([b"x" * 1000] * 500), b"\n\n"]
    assert parse(chunks) == [(b"", b"x" * 500_000)]
