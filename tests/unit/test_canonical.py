import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dukou.store.visible import visible
from gateway.lineage import canonical
from gateway.lineage.canonical import DIGEST_BYTES, chain, extend, form, root, text
from tests.fakes.renderings import TEXTS, renderings
from tests.fakes.spooled import assistant, system, user

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1, "b": [1.0]}'}}


def same(*messages):
    return len({extend(b"", form(message)) for message in messages}) == 1


def test_an_assistant_without_text_is_the_same_in_all_spellings():
    """P7."""
    absent = {"role": "assistant", "tool_calls": [CALL]}
    assert same(absent, *(absent | {"content": content} for content in (None, "", [], "  \n")))


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_text_parts_are_the_joined_text(role):
    """P8."""
    parts = [{"type": "text", "text": "Name the capital"}, {"type": "text", "text": " of Peru"}]
    assert same({"role": role, "content": "Name the capital of Peru"}, {"role": role, "content": parts})


@pytest.mark.parametrize(
    "kept",
    [
        assistant("X"),
        assistant("<think>R1</think>X"),
        assistant("X", reasoning_content="R1"),
        assistant("\n\nX"),
        assistant("R1\n</think>\n\nX"),
        assistant("X<think>more</think>"),
        assistant("X<think>never closed"),
    ],
)
def test_thinking_does_not_count(kept):
    assert same(assistant("X"), kept)


def test_a_users_words_about_thinking_do_count():
    assert not same(user("X"), user("<think>R1</think>X"))


def test_arguments_are_the_same_in_any_order_and_spacing():
    def with_arguments(arguments):
        return assistant(None, tool_calls=[{"id": "x", "function": {"name": "f", "arguments": arguments}}])

    assert same(
        assistant(None, tool_calls=[CALL]),
        with_arguments('{"b":[1],"a":1}'),
        with_arguments({"a": 1.0, "b": [1]}),
        assistant(None, function_call={"name": "f", "arguments": '{"b":[1],"a":1}'}),
    )
    assert not same(with_arguments('{"a":1}'), with_arguments('{"a":2}'))
    assert same(with_arguments(" {broken"), with_arguments("{broken "))


def test_results_of_different_calls_are_different():
    first, second = ({"role": "tool", "tool_call_id": call, "content": "7"} for call in ("c1", "c2"))
    assert not same(first, second)


def test_images_count():
    def picture(url):
        return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}

    assert not same(picture("a"), picture("b"))


def test_the_date_in_a_system_message_does_not_count():
    first, second = (system(f"Be brief.\nCurrent date: 2026-01-0{day}\nEnd.") for day in (1, 2))
    assert same(first, second)
    assert not same(first, system("Be long.\nCurrent date: 2026-01-01\nEnd."))


def test_developer_is_system_and_unknown_keys_do_not_count():
    assert same(system("A"), {"role": "developer", "content": "A", "name": "x", "cache_control": {}})


def test_chains_of_two_keys_never_meet():
    forms = [form(user("hi")), form(assistant("X"))]
    digests = [set(chain(root(*who), forms)) for who in (("t", "k1"), ("t", "k2"), ("u", "k1"), ("t", None))]
    assert len(set.union(*digests)) == 8
    assert all(len(digest) == DIGEST_BYTES for digest in digests[0])


def test_a_chain_goes_on_where_its_beginning_ended():
    forms = [form(message) for message in (user("1"), assistant("A"), user("2"))]
    begun = chain(root("t", "k"), forms[:2])
    assert chain(root("t", "k"), forms)[:2] == begun
    assert chain(root("t", "k"), forms)[2] == extend(begun[1], forms[2])


def test_lone_surrogates_and_nonsense_have_a_digest():
    for odd in (user("\ud83d"), "a string", None, {"role": 3, "content": {"a": 1}}, {"content": [None, 3]}):
        assert len(extend(b"", form(odd))) == DIGEST_BYTES


def test_text_is_stripped():
    assert text(user("  a ")) == "a"
    assert form(user(" a "))[:2] == ("user", "a")


@given(
    st.sampled_from(["system", "user", "assistant", "tool"]),
    TEXTS.map(visible).flatmap(lambda said: st.tuples(st.just(said), renderings(said))),
)
def test_what_no_reader_can_see_does_not_count(role, pair):
    said, shown = pair
    assert same({"role": role, "content": said}, {"role": role, "content": shown})


@given(TEXTS.map(visible).flatmap(lambda said: st.tuples(st.just(said), renderings(said))))
def test_nor_does_it_in_the_arguments_of_a_call(pair):
    def calling(said):
        arguments = json.dumps({"path": ["a", said]})
        return assistant(None, tool_calls=[{"id": "x", "function": {"name": "f", "arguments": arguments}}])

    assert same(*map(calling, pair))


def test_thinking_that_ended_a_line_leaves_no_blank():
    assert same(assistant("A \nB"), assistant("A <think>R</think>\nB"), assistant("A\nB"))


#: The last digest of CHAIN by the code before `dukou/store/visible.py`.
CHAIN = [system("Be brief. \r\nEnd."), user("Zoe\u0308\u200b?"), assistant("a\u00a0b \n c"), user("more")]
BEFORE = "79a910eddae0209d7a10aed27f1c5ade"


def test_rows_of_before_are_found_by_the_digests_that_they_have():
    forms = [form(message) for message in CHAIN]
    digests = chain(root("t", "k"), forms)
    assert canonical.of_chain(root("t", "k"), forms, digests)[digests[-1]].hex() == BEFORE


def test_a_text_without_anything_unseen_has_the_digest_that_it_had():
    plain = [system("Be brief.\nEnd."), user("Zoë?"), assistant("a b\n c"), user(" more \n")]
    forms = [form(message) for message in plain]
    assert canonical.of_chain(b"", forms, chain(b"", forms)) == {}
    assert all(each.former is None for each in forms)
