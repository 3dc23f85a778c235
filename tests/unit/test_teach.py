import numpy as np
import pytest

from learner.hints.choose import by_effect, effect, quotes, with_hint
from learner.hints.lessons import conversation
from learner.hints.teacher_engine import AlignmentError, _busy, on_tokens
from learner.hints.template import CannotRenderError, Conversation, enhanced, plain

ANSWER = "The capital of France is Paris, a city on the Seine with two million people."


@pytest.mark.parametrize(
    ("hint", "leaks"),
    [
        ("Say which river it lies on, and give the number of people of the region too.", False),
        ("You said: the capital of france is PARIS, a city on the Seine. Add the year.", True),
        ("Do not write 'The capital of France is' again.", False),
        (ANSWER, True),
        ("", False),
    ],
)
def test_a_hint_that_quotes_the_answer_word_for_word_leaks(hint, leaks):
    assert quotes(hint, ANSWER) is leaks


def test_chinese_is_compared_by_characters_and_a_short_answer_as_a_whole():
    assert quotes("不要说渡口边有一条小船停着", "渡口边有一条小船停着，船夫在等人。")
    assert not quotes("说明船在哪里，谁在等。", "渡口边有一条小船停着，船夫在等人。")
    assert quotes("Not yes it is, but no.", "Yes it is")
    assert not quotes("Answer with yes or no.", "Yes")
    assert quotes("Yes", "Yes")
    assert not quotes("Anything at all", "")


def test_the_hint_stands_at_the_end_of_the_last_user_message_also_inside_a_tool_loop():
    messages = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": None, "tool_calls": [{}]},
        {"role": "tool", "content": "42"},
    ]
    hinted = with_hint(messages, "Be brief.")
    assert hinted[0]["content"] == "first\n\n[Hint for a better answer: Be brief.]"
    assert hinted[1:] == messages[1:]
    assert messages[0]["content"] == "first"


def test_parts_get_one_more_part_and_without_a_user_there_is_no_place():
    parts = [{"type": "text", "text": "look"}, {"type": "image_url"}]
    hinted = with_hint([{"role": "user", "content": parts}], "x")
    assert hinted[0]["content"][:2] == parts
    assert hinted[0]["content"][2]["type"] == "text"
    assert with_hint([{"role": "system", "content": "s"}], "x") is None


IDS = np.array([5, 6, 7], np.int32)


def test_the_entries_of_the_answer_are_taken_and_the_null_before_them_dropped():
    """J16."""
    entries = [[None, 4, None], [-0.5, 5, "a"], [-1.0, 6, "b"], [-2.0, 7, "c"]]
    assert on_tokens(entries, IDS).tolist() == [-0.5, -1.0, -2.0]
    longer = [[None, 1, None], [-9.0, 4, None], *entries[1:]]  # a leading BOS of the engine's
    assert on_tokens(longer, IDS).tolist() == [-0.5, -1.0, -2.0]


def test_a_null_in_between_is_missing_and_not_zero():
    """J16."""
    assert np.isnan(on_tokens([[None, 4], [-0.5, 5], [None, 6], [-2.0, 7]], IDS)[1])


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([[-0.5, 5], [-1.0, 6]], "2 log-probabilities for 3 tokens"),
        ([[None, 4], [-0.5, 5], [-1.0, 8], [-2.0, 7]], "token 8, not 6"),
        ([[None, 5], [-1.0, 6], [-2.0, 7]], "one token more"),
        ([], "0 log-probabilities"),
    ],
)
def test_entries_of_other_tokens_are_refused(entries, words):
    """J16."""
    with pytest.raises(AlignmentError, match=words):
        on_tokens(entries, IDS)


def test_seven_log_probabilities_for_nine_tokens_are_never_zipped():
    """J16."""
    entries = [[None, 0], *([-0.1, n] for n in range(1, 8))]
    with pytest.raises(AlignmentError):
        on_tokens(entries, np.arange(1, 10, dtype=np.int32))


def test_the_hint_that_moves_the_answer_most_comes_last_whatever_its_length():
    untold = np.array([-1.0, -1.0, -1.0])
    told = {
        "a very long hint that changes next to nothing": untold - 0.01,
        "short": np.array([-3.0, -1.0, np.nan]),
        "unmeasured": np.full(3, np.nan),
    }
    assert by_effect(told, untold)[-1] == "short"
    assert by_effect(told, untold)[0] == "unmeasured"
    assert effect(told["short"], untold) == 1.0


def test_answers_of_different_lengths_have_no_effect_between_them():
    with pytest.raises(ValueError, match="not the same answer"):
        effect(np.zeros(2), np.zeros(3))


def words(messages, tools, arguments):
    """A template: one id a character of what is said; tools count by their names."""
    text = "|".join(str(message["content"]) for message in messages) + str(tools) + str(arguments)
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def test_the_hinted_prompt_is_only_made_where_the_bare_one_renders_to_what_was_recorded():
    messages, hinted = [{"content": "hi"}], [{"content": "hi, briefly"}]
    recorded = words(messages, None, {})
    assert (
        enhanced(words, Conversation(messages), hinted, recorded).tolist() == words(hinted, None, {}).tolist()
    )
    with pytest.raises(CannotRenderError, match="does not render to the recorded"):
        enhanced(words, Conversation(messages), hinted, recorded[:-1])


def test_tools_are_offered_as_sent_and_bare_and_template_arguments_are_passed_on():
    tools = [{"type": "function", "function": {"name": "f"}}]
    recorded = words([{"content": "hi"}], [{"name": "f"}], {"enable_thinking": False})
    sampling = {"chat_template_kwargs": {"enable_thinking": False}}
    made = enhanced(words, Conversation([{"content": "hi"}], tools, sampling), [{"content": "ho"}], recorded)
    assert made.tolist() == words([{"content": "ho"}], [{"name": "f"}], {"enable_thinking": False}).tolist()


def test_messages_are_made_plain_for_templates():
    call = {"function": {"name": "f", "arguments": '{"a": 1}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert plain(message)["content"] == ""
    assert plain(message)["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert (
        plain({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]})["content"]
        == "a"
    )


def test_a_demonstration_is_asked_of_the_users_words_not_in_a_tool_loop():
    asked = conversation([{"role": "developer", "content": "d"}, {"role": "user", "content": "q"}], "h")
    assert [message["role"] for message in asked] == ["system", "user"]
    assert asked[-1]["content"].endswith("h]")
    assert conversation([{"role": "user", "content": "q"}, {"role": "tool", "content": "r"}], "h") == []


def test_an_engine_is_busy_with_whatever_runs_or_waits_anywhere_in_its_report():
    assert _busy({"loads": [{"num_running_reqs": 1, "num_waiting_reqs": 2}, {"num_running_reqs": 0}]}) == 3
    assert _busy([{"num_reqs": 0}]) == 0
