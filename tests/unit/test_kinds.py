import pytest

from gateway.lineage.canonical import form
from gateway.lineage.kinds import CHAT, kind_of
from tests.fakes.spooled import assistant, system, user

TITLE = (
    "### Task:\nGenerate a concise, 3-5 word title with an emoji.\n<chat_history>\nUSER: hi\n</chat_history>"
)
CASES = [
    (
        [user("### Task:\nWrite a 3-5 word title for the chat\n<chat_history>\nUSER: hi\n</chat_history>")],
        "title",
    ),
    ([user(TITLE)], "title"),
    (
        [user("### Task:\nGenerate 1-3 broad tags categorizing the main themes of the chat history.")],
        "tags",
    ),
    (
        [user("### Task:\nSuggest 3-5 relevant follow-up questions or prompts that the user might ask.")],
        "follow_up",
    ),
    (
        [user("### Task:\nAnalyze the chat history to determine the necessity of generating search queries")],
        "query",
    ),
    ([system("You are a title generator. You output only a title."), user("how do I …")], "title"),
    ([user("Please write a 5-10 word title for the following conversation:\n\nUser: hi")], "title"),
    ([user("hi"), assistant("X"), user("Summarise the conversation so far")], "summary"),
    ([user("hi"), assistant("X"), user("Please summarize our entire conversation")], "summary"),
    ([user("x"), user("Your task is to create a detailed summary of the conversation so far, …")], "summary"),
    ([user("x"), assistant("y"), user("Pre-compaction memory flush. Store durable memories now.")], "memory"),
]


@pytest.mark.parametrize(("messages", "reason"), CASES)
def test_known_helper_requests_are_side(messages, reason):
    assert kind_of(CHAT, None, {}, [form(message) for message in messages]) == ("side", reason)


@pytest.mark.parametrize(
    "messages",
    [
        [user("hi")],
        [user("Give me a title for my novel")],
        [user("Summarise this article about conversation: …")],
        [user("### Task:\nSort these numbers.")],
        [user(TITLE), assistant("Greetings"), user("### Task:\nanother title please")],
        [user("x"), assistant("y", tool_calls=[]), {"role": "tool", "content": "summarize the conversation"}],
        [],
        ["nonsense", None],
    ],
)
def test_everything_else_is_main(messages):
    assert kind_of(CHAT, None, {}, [form(message) for message in messages]) == ("main", None)


def test_a_task_in_the_metadata_tells():
    assert kind_of(CHAT, None, {"metadata": {"task": "title_generation"}}, [form(user("x"))]) == (
        "side",
        "title",
    )


def test_the_clients_word_counts_most():
    assert kind_of(CHAT, "main", {}, [form(user(TITLE))]) == ("main", None)
    assert kind_of(CHAT, "side", {}, [form(user("hi"))]) == ("side", "declared")


def test_other_endpoints_are_side_whatever_is_said():
    assert kind_of("/v1/embeddings", "main", {}, []) == ("side", "endpoint")
