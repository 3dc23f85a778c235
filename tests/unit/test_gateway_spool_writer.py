"""The spool's writer: what it says is written is there, and nothing it meets stops a request."""

import fcntl
import os
from pathlib import Path

import pytest

from dukou.settings.serving import Spool
from gateway.spool.writer import SpoolWriter
from tests.fakes.gateway import recorded
from tests.fakes.spooled import reply_record, request_record


def writer_in(folder: Path, **settings: object) -> SpoolWriter:
    writer = SpoolWriter(folder, Spool.model_validate({"fsync": "none", **settings}))
    writer.open()
    return writer


def locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.seg"), key=lambda path: int(path.stem.rpartition("-")[2]))


@pytest.mark.parametrize("fsync", ["none", "interval", "always"])
def test_records_come_back_as_they_were(tmp_path: Path, fsync: str) -> None:
    writer = writer_in(tmp_path, fsync=fsync)
    writer.request(request_record("a", b"\x00asked"))
    writer.reply(reply_record("a", b"answered"))
    writer.sync()
    writer.close()
    ((request, reply),) = recorded(tmp_path)
    assert (request.body, reply and reply.body) == (b"\x00asked", b"answered")


def test_a_segment_is_cut_at_its_size_and_stays_locked_while_a_reply_is_missing(tmp_path: Path) -> None:
    writer = writer_in(tmp_path, segment_bytes=100)
    writer.request(request_record("a", b"x" * 80))
    writer.request(request_record("b", b"y" * 80))
    writer.reply(reply_record("b"))
    writer._release_answered()
    first, *_ = segments(tmp_path)
    assert len(segments(tmp_path)) == 3
    assert locked(first)
    writer.reply(reply_record("a"))
    writer._release_answered()
    assert not locked(first)
    assert locked(segments(tmp_path)[-1])
    writer.close()
    assert [reply is not None for _, reply in recorded(tmp_path)] == [True, True]


def test_a_reply_without_its_request_is_not_written(tmp_path: Path) -> None:
    writer = writer_in(tmp_path, max_bytes=5)
    writer.request(request_record("a"))
    writer.reply(reply_record("a"))
    assert writer.lost == 1
    assert "spool.max_bytes" in (writer.problem or "")
    writer.close()
    assert segments(tmp_path) == []


def test_a_write_that_a_full_disk_cuts_short_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_in(tmp_path)
    writer.request(request_record("a", b"1"))
    whole = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: whole(descriptor, data[:7]))
    writer.reply(reply_record("a", b"2"))
    writer.request(request_record("b", b"3"))
    assert writer.lost == 2
    assert writer.problem == "the disk is full"
    monkeypatch.setattr(os, "write", whole)
    writer.request(request_record("c", b"4"))
    assert writer.problem is None
    writer.close()
    assert [request.meta["id"] for request, _ in recorded(tmp_path)] == ["a", "c"]


def test_the_bytes_of_other_writers_count(tmp_path: Path) -> None:
    (tmp_path / "1-1-0.seg").write_bytes(b"x" * 600)
    writer = writer_in(tmp_path, max_bytes=1000)
    assert writer.used_share == 0.6
    writer.request(request_record("a", b"x" * 500))
    assert writer.lost == 1
    writer.close()
