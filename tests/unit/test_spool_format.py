"""Records on disk: what is written is read, and damage costs the damaged record and no other."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.spool import format as spool
from gateway.spool.format import CorruptRecordError, Kind, Record, Version, encode
from gateway.spool.reader import SpoolReader
from tests.fakes.spooled import Worker

#: Bodies that hold what a record begins with are among them.
BODIES = [b"first", spool.MAGIC_2 * 3 + b"\3", b"", spool.MAGIC_1 + b"\3" + b"x" * 30, b"last"]
EVERYTHING = 10**9  # bytes
_folders = itertools.count()


def segment(*versions: Version) -> list[bytes]:
    """Records that stand alone, each of the version of its turn."""
    return [
        encode(Kind.FEEDBACK, {"id": f"id {number}"}, body, version)
        for number, (body, version) in enumerate(zip(BODIES, itertools.cycle(versions), strict=False))
    ]


def drained(folder: Path, data: bytes) -> tuple[list[bytes], list[bytes]]:
    """Bodies of the records of a segment whose writer is gone, and the bytes that are set aside."""
    own = folder / str(next(_folders))
    own.mkdir()
    (own / "1-1-0.seg").write_bytes(data)
    return found_by(SpoolReader(own), 0.0, 2.0)  # a new file may still be opened by its writer


def found_by(reader: SpoolReader, *moments: float) -> tuple[list[bytes], list[bytes]]:
    bodies, aside = [], []
    for now in moments:
        for pair in reader.scan(now, EVERYTHING):
            if pair.damage is None:
                bodies.append(reader.load(pair)[0].body)
            else:
                aside.append(reader.raw(pair))
    return bodies, aside


@pytest.mark.parametrize("version", [1, 2])
@given(kind=st.sampled_from(list(Kind)), meta=st.dictionaries(st.just("id"), st.text("ab")), body=st.binary())
def test_a_record_is_read_as_it_was_written(version: Version, kind: Kind, meta: dict[str, str], body: bytes):
    written = encode(kind, meta, body, version)
    assert spool.decode(b"##" + written + b"##", 2) == (Record(kind, meta, body), 2 + len(written))
    for left in range(len(written)):
        assert spool.decode(written[:left]) is None


@pytest.mark.parametrize("versions", [(1,), (2,), (1, 2)])
def test_a_segment_may_hold_records_of_both_versions(tmp_path: Path, versions: tuple[Version, ...]):
    assert drained(tmp_path, b"".join(segment(*versions))) == (BODIES, [])


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_a_damaged_byte_costs_its_record_and_no_other(tmp_path: Path, flip: int):
    records = segment(2)
    for number, record in enumerate(records):
        for at in range(len(record)):
            damaged = bytearray(record)
            damaged[at] ^= flip
            bodies, aside = drained(
                tmp_path, b"".join([*records[:number], bytes(damaged), *records[number + 1 :]])
            )
            assert bodies == BODIES[:number] + BODIES[number + 1 :]
            assert aside == [bytes(damaged)]


def test_a_damaged_byte_of_an_open_segment_holds_nothing_up(tmp_path: Path):
    """A damaged length least of all, however long it says that the record is."""
    records = segment(2)
    for at in range(len(records[1])):
        damaged = bytearray(records[1])
        damaged[at] ^= 0x40
        worker = Worker(tmp_path / str(at))
        worker.append(b"".join([records[0], bytes(damaged), *records[2:]]))
        found = found_by(SpoolReader(tmp_path / str(at)), 0.0)
        worker.die()
        assert found == ([BODIES[0], *BODIES[2:]], [bytes(damaged)])


def test_what_an_open_segment_ends_in_is_left_to_its_writer(tmp_path: Path):
    records = segment(2)
    worker = Worker(tmp_path)
    worker.append(records[0] + records[1][:-1] + b"?")
    reader = SpoolReader(tmp_path)
    assert found_by(reader, 0.0, 2.0) == ([BODIES[0]], [])
    worker.die()
    assert found_by(reader, 4.0) == ([], [records[1][:-1] + b"?"])


def test_a_segment_that_is_cut_anywhere_keeps_its_whole_records(tmp_path: Path):
    records = segment(2)
    data = b"".join(records)
    ends = list(itertools.accumulate(map(len, records)))
    for cut in range(len(data)):
        assert drained(tmp_path, data[:cut]) == (BODIES[: sum(end <= cut for end in ends)], [])


def test_bytes_that_are_missing_cost_the_records_that_they_were_of(tmp_path: Path):
    records = segment(2)
    for number, length in itertools.product(range(1, 4), (1, 2, 7, 16)):
        for at in range(0, len(records[number]) - length, 3):
            short = records[number][:at] + records[number][at + length :]
            data = b"".join([*records[:number], short, *records[number + 1 :]])
            bodies, aside = drained(tmp_path, data)
            assert bodies == BODIES[:number] + BODIES[number + 1 :]
            assert aside == [short]


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 255)), min_size=1, max_size=4))
def test_damage_at_several_places_costs_only_the_records_that_it_is_in(tmp_path_factory, damage):
    records = [bytearray(record) for record in segment(2)]
    harmed = set()
    for at, flip in damage:
        for number, record in enumerate(records):
            if at < len(record):
                record[at] ^= flip
                harmed.add(number)
                break
            at -= len(record)
    bodies, aside = drained(tmp_path_factory.mktemp("spool"), b"".join(records))
    whole = [body for number, body in enumerate(BODIES) if number not in harmed]
    assert [body for body in bodies if body in whole] == whole
    lost = {number for number in harmed if BODIES[number] not in bodies}
    assert all(any(bytes(records[number]) in each for each in aside) for number in lost)


def test_a_record_of_a_kind_that_a_later_version_writes_is_set_aside_alone(tmp_path: Path):
    records = segment(2)
    unknown = encode(9, {"id": "x"}, b"y", 2)  # type: ignore[arg-type]
    data = b"".join([records[0], unknown, *records[1:]])
    assert drained(tmp_path, data) == (BODIES, [unknown])


def test_the_size_of_a_damaged_record_is_known_where_its_head_is_whole():
    record = segment(2)[0]
    with pytest.raises(CorruptRecordError, match="checksum") as caught:
        spool.decode(record[:-1] + b"?")
    assert caught.value.size == len(record)
    with pytest.raises(CorruptRecordError, match="head") as caught:
        spool.decode(record[:4] + b"?" + record[5:])
    assert caught.value.size is None


def test_what_is_written_has_a_checksum_over_its_head():
    assert encode(Kind.REPLY, {}, b"").startswith(spool.MAGIC_2)
