"""A full disk (D18), with real writes: the kernel refuses bytes beyond the limit of a file's size."""

import logging
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dukou.settings.serving import Spool
from gateway.spool.reader import SpoolReader
from gateway.spool.writer import SpoolWriter
from tests.fakes.gateway import recorded
from tests.fakes.spooled import reply_record, request_record

ROOM = 4000  # bytes that a file may have


@contextmanager
def full_disk() -> Iterator[None]:
    """No file grows beyond ROOM: a write is cut short there, and the next one fails.

    The limit is the whole process's, so it must be gone before the test runner writes to a log of its own.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[SpoolWriter]:
    made = SpoolWriter(tmp_path, Spool(fsync="none"))
    made.open()
    yield made
    made.close()


def say(writer: SpoolWriter, number: int, size: int = 300) -> None:
    writer.request(request_record(f"{number:032x}", b"q" * size))
    writer.reply(reply_record(f"{number:032x}", b"a" * size))


def test_what_does_not_fit_is_counted_and_what_fits_stays_whole(writer: SpoolWriter, tmp_path: Path) -> None:
    with full_disk():
        for number in range(20):
            say(writer, number)
    turns = recorded(tmp_path)
    whole = [request for request, reply in turns if reply is not None]
    assert len(whole) + writer.lost == 20
    assert 0 < len(whole) < 10
    assert writer.problem is not None


def test_the_log_gets_one_line_and_not_one_a_request(
    writer: SpoolWriter, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR), full_disk():
        for number in range(200):
            say(writer, number, 300 if number % 2 else 10)
    said = [record for record in caplog.records if "not recorded" in record.message]
    assert writer.lost > 100
    assert len(said) <= 2  # a write that was cut short, and one that failed


def test_it_goes_on_by_itself_once_there_is_room(tmp_path: Path, writer: SpoolWriter) -> None:
    with full_disk():
        for number in range(10):
            say(writer, number)
    lost = writer.lost
    say(writer, 99)
    assert (writer.lost, writer.problem) == (lost, None)
    assert recorded(tmp_path)[-1][1] is not None


def test_finished_segments_are_deleted_although_positions_cannot_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else a full disk would never be freed."""
    writer = SpoolWriter(tmp_path, Spool(fsync="none"))
    writer.open()
    for number in range(3):
        say(writer, number)
    writer.close()
    reader = SpoolReader(tmp_path)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(reader._positions, "save", refuse)
    pairs = reader.scan(0.0, 10**6)
    reader.settle([])
    pairs += reader.scan(2.0, 10**6)
    reader.settle([pair.id for pair in pairs])
    reader.settle([])
    assert len(pairs) == 3
    assert list(tmp_path.glob("*.seg")) == []
    assert len([record for record in caplog.records if "positions" in record.message]) == 1
