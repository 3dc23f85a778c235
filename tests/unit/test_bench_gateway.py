"""The gateway benchmark's fake replies are what the gateway and the drainer take for an engine's."""

import os
from pathlib import Path

import pytest

from bench.relaying import measure
from bench.relaying import replies as made
from gateway.parse.reply import fold
from gateway.relay.capture import cuts_of
from gateway.relay.filter import StreamFilter, filter_body

BODY = cuts_of(["return_token_ids", "return_meta_info", "logprobs"], None)
STREAM = cuts_of(
    ["return_input_ids_in_sglext", "return_output_ids_in_sglext", "logprobs", "stream_options.include_usage"],
    None,
)


@pytest.fixture
def replies(tmp_path: Path) -> dict[str, bytes]:
    made.write(tmp_path)
    return {path.name: path.read_bytes() for path in tmp_path.iterdir()}


@pytest.mark.parametrize("form", ["json", "sse"])
def test_a_captured_reply_has_an_id_and_a_logprob_for_every_token(
    replies: dict[str, bytes], form: str
) -> None:
    (answer,) = fold(replies[f"captured.{form}"]).answers
    assert answer.response_ids is not None
    assert answer.logprobs is not None
    assert len(answer.response_ids) == len(answer.logprobs) == made.TOKENS
    assert answer.prompt_ids
    assert answer.finish_reason == "stop"


def test_without_what_dukou_asked_for_a_captured_body_is_the_plain_one(replies: dict[str, bytes]) -> None:
    assert filter_body(replies["captured.json"], BODY) == replies["plain.json"]


def test_without_what_dukou_asked_for_a_captured_stream_is_the_plain_one(replies: dict[str, bytes]) -> None:
    events = StreamFilter(STREAM)
    shown = events.feed(replies["captured.sse"])
    assert shown + b"data: [DONE]\n\n" == replies["plain.sse"]
    assert events.done
    assert shown.count(b"data:") + 1 >= made.EVENTS


def test_capture_makes_a_reply_several_times_larger(replies: dict[str, bytes]) -> None:
    assert len(replies["captured.json"]) > 4 * len(replies["plain.json"])


def test_a_process_has_cpu_time_and_memory() -> None:
    assert measure.cpu_seconds(os.getpid()) > 0
    assert measure.memory_mb(os.getpid()) >= measure.memory_mb(os.getpid(), "VmRSS") > 1
