"""A segment is read in large pieces: where they end changes nothing."""

import os
from pathlib import Path

import pytest

from gateway.spool import reader
from gateway.spool.format import CorruptRecordError, Kind, encode
from gateway.spool.reader import BulkReader

BODIES = [b"", b"a" * 10, b"b" * 300, b"c" * 5000, b"d" * 40, b"e"]
RECORDS = [encode(Kind.REPLY, {"id": str(number)}, body) for number, body in enumerate(BODIES)]


@pytest.fixture(params=[15, 64, 333, 2**20])
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_PIECE", request.param)


def read(path: Path) -> list[bytes]:
    bodies, offset = [], 0
    with path.open("rb") as file:
        opened = BulkReader(file.fileno())
        while (found := opened.record(offset)) is not None:
            bodies.append(found[0].body)
            offset += found[1]
    return bodies


@pytest.mark.usefixtures("piece")
def test_every_record_is_read_whatever_a_piece_holds(tmp_path: Path) -> None:
    path = tmp_path / "a.seg"
    path.write_bytes(b"".join(RECORDS))
    assert read(path) == BODIES


@pytest.mark.usefixtures("piece")
@pytest.mark.parametrize("left", [1, 10, 12, 30])
def test_a_torn_tail_is_no_record(tmp_path: Path, left: int) -> None:
    path = tmp_path / "a.seg"
    path.write_bytes(b"".join(RECORDS[:3]) + RECORDS[3][:left])
    assert read(path) == BODIES[:3]


@pytest.mark.usefixtures("piece")
def test_damaged_bytes_are_told_and_what_follows_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.seg"
    damaged = RECORDS[1][:-1] + b"?"
    path.write_bytes(RECORDS[0] + damaged + RECORDS[2])
    with path.open("rb") as file:
        opened = BulkReader(file.fileno())
        at = len(RECORDS[0])
        with pytest.raises(CorruptRecordError) as caught:
            opened.record(at)
        assert opened.behind(at, caught.value.size) == at + len(damaged)


def test_a_file_that_was_cut_back_since_it_was_opened_ends_there(tmp_path: Path) -> None:
    """A writer takes back what a full disk cut short."""
    path = tmp_path / "a.seg"
    path.write_bytes(RECORDS[0] + RECORDS[3][:100])
    with path.open("rb") as file:
        opened = BulkReader(file.fileno())
        os.truncate(path, len(RECORDS[0]))
        assert opened.record(len(RECORDS[0])) is None
