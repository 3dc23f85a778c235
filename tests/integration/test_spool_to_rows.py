"""What the gateway's own writer and records leave behind is what the drainer reads."""

import signal
import subprocess
import sys
import time
from uuid import UUID

import pytest

from dukou.settings.serving import Spool
from gateway.relay import ending
from gateway.relay.client import Inbound
from gateway.relay.identity import identify, new_turn_id
from gateway.routes import EngineFacts, EngineRoute
from gateway.spool.writer import SpoolWriter
from tests.fakes.ferry import START, Ferry
from tests.fakes.spooled import reply_body, reply_record, request_body, request_meta, request_record, user


@pytest.fixture
def ferry(tmp_path, db):
    made = Ferry(tmp_path, db)
    made.worker.die()
    return made


def test_turns_over_many_small_segments_all_arrive_and_the_files_go(ferry):
    writer = SpoolWriter(ferry.folder, Spool(segment_bytes=4000))
    writer.open()
    asked = [new_turn_id(int((START + n) * 10**9)) for n in range(30)]
    for number, turn in enumerate(asked):
        writer.request(request_record(turn, request_body([user(f"{number}")]), START + number))
        if number >= 5:  # each reply comes five requests, and so segments, later
            earlier = asked[number - 5]
            writer.reply(reply_record(earlier, reply_body(f"{number - 5}"), START + number + 0.5))
        ferry.clock += 2
        ferry.drain()
    writer.close()
    ferry.clock += 2
    ferry.drain()
    ferry.drain()
    rows = ferry.rows()
    assert [(row.id.hex, row.status) for row in rows] == [
        (turn, "ok" if number < 25 else "interrupted") for number, turn in enumerate(asked)
    ]
    assert [row.response_text for row in rows[:25]] == [f"{number}" for number in range(25)]
    assert list(ferry.folder.glob("*.seg")) == []


@pytest.mark.parametrize(
    ("known", "stored", "reason"),
    [({}, {}, None), ({"top_k": 1}, {"top_k": 1}, "sampling_greedy"), (None, None, "sampling_unknown")],
)
def test_what_the_relay_knew_of_the_engines_sampling_is_in_the_row(ferry, known, stored, reason):
    """K15: nothing taken and nothing known are two things."""
    ferry.clock += 1
    turn = new_turn_id(int(START * 10**9))
    engine = EngineRoute("http://e", "ready", 3, 3, facts=EngineFacts(sampling_defaults=known))
    worker = ferry.new_worker()
    worker.request(request_meta(turn, ferry.clock), request_body([user("hi")]))
    seen = {"status": 200, "gone": None, "first_byte_ns": None, "sent_to": engine, "engine_now": engine}
    reply = ending.reply_record(turn, ending.Ending("ok"), reply_body("X"), **seen)
    worker.reply(reply.encode().meta, reply.body)
    ferry.drain()
    row = ferry.row(UUID(turn))
    assert (row.sampling_defaults, row.untrainable_reason) == (stored, reason)


def test_the_records_that_the_relay_writes_are_understood(ferry):
    writer = SpoolWriter(ferry.folder, Spool())
    writer.open()
    turn = new_turn_id(int(START * 10**9))
    headers = {"x-session-id": "s1", "x-session-done": "1", "x-request-id": "r1"}
    path = "/v1/chat/completions"
    inbound = Inbound(turn, path, None, headers, "k1", request_body([user("hi")]), int(START * 10**9))
    stated = identify(None, headers, {})
    writer.request(ending.request_record(inbound, stated, None, (), False))
    reply = ending.reply_record(
        turn,
        ending.Ending("ok"),
        reply_body("X"),
        status=200,
        gone=None,
        first_byte_ns=None,
        sent_to=None,
        engine_now=None,
    )
    writer.reply(reply)
    ferry.drain()
    writer.close()
    row = ferry.row(UUID(turn))
    assert (row.session_id, row.session_source, row.client_request_id) == ("s1", "x-session-id", "r1")
    assert (row.status, row.first_token_at, row.untrainable_reason) == ("ok", None, "version_unknown")
    assert ferry.state(row.id)[0] == "dropped"


_DRAIN = """
import sys
from pathlib import Path
from dukou.settings.model import Config
from dukou.settings.serving import Database
from gateway.drain.process import main
main(Config(state_dir=Path(sys.argv[1]), database=Database(url=sys.argv[2])))
"""


def test_the_process_drains_until_it_is_told_to_stop(ferry, tmp_path, database_url):
    worker = ferry.new_worker()
    ferry.worker = worker
    first = ferry.say([user("1")])
    command = [sys.executable, "-c", _DRAIN, str(tmp_path), database_url]
    with subprocess.Popen(command) as process:
        deadline = time.monotonic() + 60
        while not ferry.rows() and time.monotonic() < deadline:
            time.sleep(0.05)
        last = ferry.say([user("2")])
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert [row.id for row in ferry.rows()] == [first, last]
