import json
from pathlib import Path

import pytest

from learner.score.next_state import Case, is_error
from learner.score.rules_judge import verdict

LABELLED = Path(__file__).parents[1] / "data" / "next_states.jsonl"


def case(*messages, asked="How do I reverse a list?"):
    return Case(({"role": "user", "content": asked},), "Use reversed().", None, (), messages)


def user(content):
    return {"role": "user", "content": content}


def tool(content, **more):
    return {"role": "tool", "content": content, **more}


def labelled(split):
    rows = map(json.loads, LABELLED.read_text(encoding="utf-8").splitlines())
    return [row for row in rows if row["split"] == split]


def judged(row):
    return verdict(case(*row["next"], asked=row["asked"])).value


# Measured: train 0.99, held out 0.91, and 0.04 of the held-out verdicts have the opposite sign.
@pytest.mark.parametrize(("split", "floor"), [("train", 0.95), ("heldout", 0.88)])
def test_agreement_with_the_labels(split, floor):
    rows = labelled(split)
    agreed = sum(judged(row) == row["label"] for row in rows)
    assert agreed / len(rows) >= floor


def test_held_out_verdicts_seldom_have_the_opposite_sign():
    rows = labelled("heldout")
    opposite = sum(judged(row) == -row["label"] != 0 for row in rows)
    assert opposite / len(rows) <= 0.06


def test_the_labelled_set_is_large_and_its_halves_share_no_question():
    train, held_out = labelled("train"), labelled("heldout")
    assert len(train) + len(held_out) >= 200
    asked = {row["asked"] for row in train if row["asked"]}
    assert not asked & {row["asked"] for row in held_out}


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("Thanks! And what about tuples?", 1),
        ("Thanks, but that is wrong.", -1),
        ("Perfect, but make it shorter", -1),
        ("Wrong. Thanks for trying.", -1),
        ("How do I reverse a list??", -1),
        ("And a tuple?", 0),
        ("谢谢，那元组呢？", 1),
        ("谢谢，但是不对", -1),
        ("No problem, thanks", 1),
        ("> that's wrong\nWho said this?", 0),
        ("What does this do?\n```\nassert wrong, 'error: bad'\n```", 0),
        ("Спасибо большое", None),
        ("👍", None),
        ("", None),
    ],
)
def test_a_users_message_is_judged_by_what_it_says_of_the_answer(said, value):
    assert verdict(case(user(said))).value == value


def test_praise_before_a_new_question_counts_and_the_same_word_later_does_not_hide_a_complaint():
    assert verdict(case(user("Great. How would I test that?"))).reason == "praise"
    assert verdict(case(user("That's not what I asked. Thanks."))).reason == "correction"


def test_the_user_outweighs_the_tools():
    assert verdict(case(tool("Error: disk full"), user("perfect, that is expected"))).value == 1
    assert verdict(case(tool("ok"), user("that's the wrong file"))).value == -1


def test_every_tool_result_must_be_free_of_errors():
    assert verdict(case(tool("ok"), tool(""))).value == 1
    assert verdict(case(tool("ok"), tool("KeyError: 'a'"))).reason == "1 of 2 tool results failed"


@pytest.mark.parametrize("nothing", [(), ({"role": "system", "content": "Be brief."},)])
def test_where_nobody_spoke_there_is_no_verdict(nothing):
    assert verdict(case(*nothing)).value is None


def test_only_the_fields_that_say_how_it_went_count_in_json():
    assert not is_error(tool('{"results": ["error: fatal failure"], "errors": []}'))
    assert is_error(tool('{"stdout": "fine", "exit_code": 3}'))
    assert not is_error(tool('{"error": "a title", "exit_code": 0}'))


def test_errors_in_the_middle_of_a_long_result_are_content():
    lines = ["line"] * 10
    assert not is_error(tool("\n".join([*lines, "Error: quoted from a log", *lines])))
    assert is_error(tool("\n".join([*lines, "Error: at the end"])))


def test_a_client_that_says_so_is_believed():
    assert is_error(tool("fine", is_error=True))
    assert is_error(tool("fine", status="error"))
