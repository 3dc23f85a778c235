import pytest

from learner.score.next_state import Case, next_state
from learner.text import text_of, well_formed


def said(role, content=None):
    return {"role": role, "content": content}


HISTORY = [said("user", "a"), said("assistant", "b")]


@pytest.mark.parametrize(
    ("messages", "count", "texts"),
    [
        ([*HISTORY, said("user", "c")], 2, ["c"]),
        ([*HISTORY, said("user", "c")], 1, ["c"]),
        ([*HISTORY, said("tool", "1"), said("tool", "2"), said("tool", "3")], 2, ["1", "2", "3"]),
        ([*HISTORY, said("tool", "1"), said("user", "c")], 2, ["1", "c"]),
        ([*HISTORY, said("user", "c"), said("assistant", "made up"), said("user", "d")], 2, ["c"]),
        ([*HISTORY], 2, []),
        ([*HISTORY, said("user", "c")], None, []),
        ([*HISTORY, "no message", {"content": "x"}, said("user", "c")], 2, ["c"]),
    ],
)
def test_the_next_state_is_what_is_new_up_to_an_assistant_message(messages, count, texts):
    assert [text_of(message) for message in next_state(messages, count)] == texts


def test_parts_that_are_no_text_are_named():
    content = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "…"}}, "so", 7]
    assert text_of(said("user", content)) == "look\n[image_url omitted]\nso\n[part omitted]"
    assert text_of(said("assistant")) == ""


def test_what_was_asked_is_the_last_user_message():
    request = well_formed([said("user", "a"), said("assistant", "b"), said("user", "c"), said("tool", "d")])
    assert Case(request, "x", None, (), ()).asked == "c"
    assert Case((), "x", None, (), ()).asked == ""
