"""What `store: false` does under each setting, and what is no such word."""

import typing

import pytest

from dukou.settings.model import Config
from dukou.settings.serving import StoreFalse
from dukou.store.states import REASONS
from gateway.drain.assemble import assemble
from gateway.parse import body
from gateway.spool.format import Kind, Record
from learner.status.remedies import REMEDIES
from tests.fakes.spooled import reply_body, reply_meta, request_body, request_meta, turn_id, user

SETTINGS = typing.get_args(StoreFalse)
every_setting = pytest.mark.parametrize("setting", SETTINGS)


def draft(setting, path="/v1/chat/completions", **body):
    turn = turn_id(1000)
    request = Record(Kind.REQUEST, request_meta(turn, 1000, path=path), request_body([user("hi")], **body))
    reply = Record(Kind.REPLY, reply_meta(turn, 1001), reply_body("X"))
    return assemble(request, reply, 1, setting)


@pytest.mark.parametrize(
    ("setting", "reason", "unrecorded"),
    [("ignore", None, False), ("no_train", "store_false", False), ("no_record", "store_false", True)],
)
def test_each_setting_says_what_becomes_of_a_chat_turn(setting, reason, unrecorded):
    made = draft(setting, store=False)
    assert (made.rows[0].untrainable_reason, made.unrecorded) == (reason, unrecorded)


@every_setting
@pytest.mark.parametrize("more", [{}, *({"store": value} for value in (True, None, 0, "false", [], {}))])
def test_only_false_itself_asks_for_anything(setting, more):
    made = draft(setting, **more)
    assert (made.rows[0].untrainable_reason, made.unrecorded) == (None, False)


@every_setting
def test_turns_of_other_endpoints_are_recorded_unless_nothing_may_be(setting):
    made = draft(setting, path="/v1/completions", store=False)
    assert (made.rows[0].untrainable_reason, made.unrecorded) == ("endpoint", setting == "no_record")


def test_the_default_keeps_the_turn_and_does_not_train_it():
    default = Config().privacy.store_false
    assert not body.forbids_recording({"store": False}, default)
    assert body.forbids_training({"store": False}, default)


def test_status_names_the_setting():
    for words in (REASONS["store_false"], REMEDIES["store_false"]):
        assert 'privacy.store_false = "ignore"' in words
