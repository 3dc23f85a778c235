"""The wire format of int4[] and float4[], byte by byte."""

import struct

import numpy as np
import pytest

from dukou.store.binary import decode_ids, decode_logprobs, encode_ids, encode_logprobs


def test_ids_are_length_prefixed_big_endian_words() -> None:
    head = struct.pack(">iiIii", 1, 0, 23, 2, 1)
    assert encode_ids([1, -2]) == head + struct.pack(">iiii", 4, 1, 4, -2)


def test_a_missing_logprob_has_length_minus_one_and_no_bytes() -> None:
    head = struct.pack(">iiIii", 1, 1, 700, 3, 1)
    assert encode_logprobs([-0.5, None, 2.0]) == head + struct.pack(">ifiif", 4, -0.5, -1, 4, 2.0)


def test_an_empty_array_has_no_dimension() -> None:
    assert encode_ids([]) == struct.pack(">iiI", 0, 0, 23)
    assert encode_logprobs(np.array([], dtype=np.float32)) == struct.pack(">iiI", 0, 0, 700)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16, ">i4"])
def test_any_integer_type_and_stride_gives_the_same_bytes(dtype: object) -> None:
    assert encode_ids(np.arange(8, dtype=dtype)[::2]) == encode_ids([0, 2, 4, 6])


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        ([2**31], "outside int4"),
        ([-(2**31) - 1], "outside int4"),
        ([1.0], "integers"),
        ([True], "integers"),
        ([1, None], "integers"),
        ([[1, 2]], "one dimension"),
        (np.ma.masked_array([1, 2], mask=[False, True]), "none missing"),
    ],
)
def test_what_is_no_int4_array_is_refused(ids: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        encode_ids(ids)


def test_a_table_of_logprobs_is_refused() -> None:
    with pytest.raises(ValueError, match="one dimension"):
        encode_logprobs(np.zeros((2, 2)))


def test_postgres_text_is_read_with_its_words_for_missing_and_infinite() -> None:
    assert decode_ids(b"{1,-2,2147483647}").tolist() == [1, -2, 2**31 - 1]
    read = decode_logprobs(b"{-0.5,NULL,-Infinity,1e-45}")
    assert np.array_equal(read, np.float32([-0.5, np.nan, -np.inf, 1e-45]), equal_nan=True)
    assert (decode_ids(b"{}").size, decode_logprobs(b"{}").size) == (0, 0)


def test_a_null_among_ids_is_refused() -> None:
    with pytest.raises(ValueError, match="never missing"):
        decode_ids(b"{1,NULL}")
