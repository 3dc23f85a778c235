"""What counts as an answer that the user wrote anew, and what a client may have done by itself."""

import unicodedata

import pytest
from hypothesis import given

from dukou.store.visible import visible
from learner.score.edits import corrected, is_edit
from tests.fakes.renderings import renderings
from tests.fakes.spooled import assistant, system, user

SAID = "The capital of Australia is Sydney, a city by the sea."
EDITED = "The capital of Australia is Canberra, a city in the hills."
ASKED = [system("Now: 10:00"), user("What is the capital of Australia?")]


def later(answer, *more):
    return [system("Now: 10:05"), ASKED[1], answer, *(more or [user("And of Chile?")])]


def test_an_answer_that_comes_back_with_other_words_is_the_corrected_one():
    assert corrected(ASKED, SAID, later(assistant(EDITED))) == EDITED


def test_thinking_is_not_part_of_what_was_edited():
    kept = assistant(f"<think>Sydney? No.</think>{EDITED}")
    assert corrected(ASKED, f"<think>Hm.</think>{SAID}", later(kept)) == EDITED
    assert corrected(ASKED, SAID, later(assistant(f"<think>Hm.</think>{SAID}"))) is None


@pytest.mark.parametrize(
    "kept",
    [
        SAID,
        f"**{SAID.upper()}**",
        SAID[:30],
        "The capital of Australia is …",
        f"{SAID}\n\nSources: an atlas",
        "[an earlier answer was left out]",
        "Canberra.",
        "",
    ],
    ids=["equal", "markup", "cut", "shortened", "longer", "placeholder", "another text", "empty"],
)
def test_what_a_client_may_have_done_by_itself_is_no_edit(kept):
    assert corrected(ASKED, SAID, later(assistant(kept))) is None


@pytest.mark.parametrize(
    "messages",
    [
        [ASKED[1], assistant(EDITED)],
        [ASKED[1], assistant(EDITED), assistant("more")],
        [user("What is the capital of Chile?"), assistant(EDITED), user("And?")],
        [ASKED[1], user("hello?"), assistant(EDITED), user("And?")],
        [ASKED[1], assistant(EDITED, tool_calls=[{"id": "c"}]), user("And?")],
        ["no message", ASKED[1]],
        [],
    ],
    ids=["not gone on from", "not answered", "edited question", "inserted", "calls", "garbage", "empty"],
)
def test_an_edited_answer_stands_where_the_answer_stood_and_was_gone_on_from(messages):
    assert corrected(ASKED, SAID, messages) is None


def test_chinese_is_compared_by_characters():
    assert is_edit("澳大利亚的首都是悉尼。", "澳大利亚的首都是堪培拉。")
    assert not is_edit("澳大利亚的首都是悉尼。", "澳大利亚的首都是悉尼！")


@given(renderings(ASKED[1]["content"]), renderings(SAID))
def test_what_no_reader_can_see_is_no_edit(asked, kept):
    assert corrected(ASKED, SAID, [user(asked), assistant(kept), user("And of Chile?")]) is None


@given(renderings(ASKED[1]["content"]), renderings(f"{EDITED}\nSo it is."))
def test_an_edit_is_seen_through_any_rendering_and_kept_without_what_software_left_in_it(asked, kept):
    found = corrected(ASKED, SAID, [user(asked), assistant(kept), user("And of Chile?")])
    assert found is not None
    assert visible(found) == f"{EDITED}\nSo it is."
    assert not set(found) & set("\r\x85\u2028\u200b\ufeff\u00ad\x00")


def test_accents_in_the_other_form_are_the_same_words():
    said, edited = "Zoë aß gestern süße Crêpes.", "Zoë aß heute süße Crêpes."
    assert not is_edit(said, unicodedata.normalize("NFD", said))
    assert is_edit(said, unicodedata.normalize("NFD", edited))
