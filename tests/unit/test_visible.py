"""The normal form: what no reader can tell apart is one text, and what one can is two."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dukou.store.visible import begins, typed, visible
from tests.fakes.renderings import TEXTS, renderings


@given(TEXTS.map(visible).flatmap(lambda text: st.tuples(st.just(text), renderings(text))))
def test_a_text_that_was_rendered_anew_is_the_same_text(pair):
    text, shown = pair
    assert visible(shown) == text


@given(TEXTS, st.sampled_from(("NFC", "NFD")))
def test_any_text_is_the_same_in_each_form_of_its_accents(text, form):
    assert visible(unicodedata.normalize(form, text)) == visible(text)


@given(TEXTS)
def test_the_form_of_a_form_is_that_form(text):
    assert visible(visible(text)) == visible(text) == visible(typed(text))
    assert typed(typed(text)) == typed(text)
    form = visible(text)
    assert visible(form) is form


@given(TEXTS, st.sampled_from("x7?é²。"), st.data())
def test_a_character_more_is_another_text(text, more, data):
    at = data.draw(st.integers(0, len(text)))
    assert visible(text[:at] + more + text[at:]) != visible(text)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("ﬁ", "fi"),
        ("x²", "x2"),
        ("Ａ", "A"),
        ("e", "é"),
        ("a b", "ab"),
        ("a  b", "a b"),
        ("    return", "return"),
        ("\treturn", "    return"),
        ("\u3000a", "a"),
        ("a\n\nb", "a\nb"),
        ("A", "a"),
        ("“a”", '"a"'),
        ("a-b", "a\u2010b"),
    ],
)
def test_what_a_reader_sees_counts(text, other):
    assert visible(text) != visible(other)


@pytest.mark.parametrize("text", ["", "a", "def f():\n    return 1\n", "Zoë sagt:\n  „ja“", "澳大利亚。\n是"])
def test_a_text_in_its_normal_form_is_left_as_the_very_object_that_it_is(text):
    assert visible(text) is text
    assert typed(text) is text


def test_what_a_person_typed_is_drawn_as_it_was():
    assert (
        typed("\ufeff👩\u200d💻 می\u200cخواهم\u00a0! \r\ne\u0301\u00ad")
        == "👩\u200d💻 می\u200cخواهم\u00a0!\né"
    )


def test_a_beginning_may_be_cut_between_a_letter_and_its_accent():
    assert begins("Zoë", "Zoe")
    assert begins("Zoë", "Zo")
    assert not begins("Zoë", "Zoa")


def test_marks_without_end_are_no_work_without_end():
    """Sorted as one run, these would take minutes. A failure must not compare them, which takes longer."""
    piled = "a" + "\u0301\u0327" * 200_000
    is_longer_by_one = visible(piled + "b") == visible(piled) + "b"
    assert is_longer_by_one


def test_lone_surrogates_are_characters():
    assert visible("\ud83d\r\n") == "\ud83d\n"
