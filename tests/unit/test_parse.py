import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dukou.store.scores import ABSTAINED, OK
from learner.score.verdict import ParsedReply, parse

UNREADABLE = ParsedReply("unparsable")
LINES = ("So it is.\n", "Or rather:\n\n")
SAYINGS = (*LINES, "I think ", "；", "\nFinally: ")
FORMS = (
    "\\boxed{{{}}}".format,
    lambda value: json.dumps({"score": value}),
    lambda value: json.dumps({"reason": "\\boxed{0}", "score": value, "hint": ""}, indent=1),
)
MORE = " because it is so."
ENDS = ("", "\n", "\n\n", MORE)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"\boxed{1}", 1),
        (r"\boxed{+1}", 1),
        (r"\boxed{-1}", -1),
        (r"\boxed{−1}", -1),
        (r"\boxed{ 0 }", 0),
        (r"\boxed{\text{+1}}", 1),
        (r"Two bullets were wrong, so \boxed{-1}.", -1),
        ("\\boxed{1} … on reflection\n\\boxed{-1}", -1),
        (r"\boxed{1}, which is \boxed{+1}", 1),
        (r"<think>\boxed{1}</think>\boxed{-1}", -1),
        (r"a lost beginning \boxed{1}</think> \boxed{0}", 0),
        ('{"score": 1}', 1),
        ('```json\n{"Score": "-1"}\n```', -1),
        ('{"score": 1.0, "reason": "x"}', 1),
        ('Here it is: {"reason": "{odd} \\\\boxed{1}", "score": -1} as asked.', -1),
        ('{"score": 1} no, rather\n$\\boxed{-1}$', -1),
        ('\\boxed{1} no, rather\n\n  **{"score": 0}**\n', 0),
        ('{"score": 1}\n{"score": -1, "hint": ""}', -1),
        ('At first \\boxed{1}. So:\n```json\n{\n "score": -1\n}\n```', -1),
        ('{"score": 7}, no:\n{"score": 1}', 1),
        ('> {"score": 1}\n{"score": -1}', -1),
    ],
)
def test_a_declared_verdict_counts_where_it_is_the_only_one_or_stands_alone_at_the_end(text, value):
    """J2."""
    assert parse(text) == ParsedReply(OK, value)


@pytest.mark.parametrize(
    "text",
    [
        "There are 5 reasons … score 1",
        "score: 1",
        "7",
        "1",
        "-3",
        "1e1",
        "９",
        "9,5",
        "score: 85",
        '{"score": 85}',
        r"\boxed{7/10}",
        "Not excellent",
        "I cannot evaluate this.",
        "",
        r"\boxed{7}",
        r"\boxed{10}",
        r"\boxed{1/1}",
        r"\boxed{1e0}",
        r"\boxed{１}",
        r"\boxed{0,5}",
        r"\boxed{+1|-1|0}",
        r"\boxed{NaN}",
        r"\boxed{}",
        r"\boxed{1",
        r"<think>\boxed{1}",
        r"<thinking>so {\"score\": 1}",
        '{"score": 2}',
        '{"score": 0.9, "reason": "The',
        '{"score": 1, "reason": "The',
        '{"score": true}',
        '{"score": NaN}',
        '{"score": [1]}',
        '{"reason": "good"}',
        r"> \boxed{1}",
        r'The answer says "\boxed{1}" to me.',
        r"The answer says “\boxed{1}” to me.",
        r"答案里写着「\boxed{1}」。",
        r"It wants `\boxed{1}`.",
        'It wants `{"score": 1}`.',
        r'{"note": "\\boxed{1}"} as a note',
        "[" * 100_000,
        r"\boxed{1} … on reflection \boxed{-1}",
        r'{"score": 1} no, rather \boxed{-1}',
        r'\boxed{1} no, rather {"score": 0}',
        '{"score": 1}\n{"score": -1}\nas the user asked.',
        '{"score": 1}\nrather {"score": null}',
        '[{"score": 1}, {"score": -1}]',
        '{"score": 1, "score": -1}',
        '{"Score": 1, "reason": "", "score": 0}',
        '{"score": 1}\n“so it says” {"score": -1}',
        '{"score": 85} and {"score": 1}',
    ],
)
def test_what_is_no_declared_verdict_is_unparsable_never_a_number(text):
    """J2."""
    assert parse(text) == UNREADABLE


def test_null_is_an_abstention():
    assert parse('{"score": null}') == ParsedReply(ABSTAINED)


def test_a_hint_comes_with_the_verdict():
    assert parse('{"score": -1, "hint": " Use three bullets. "}') == ParsedReply(OK, -1, "Use three bullets.")
    assert parse('{"score": -1, "hint": ""}') == ParsedReply(OK, -1, None)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(SAYINGS), st.integers(-1, 1), st.sampled_from(FORMS)), max_size=5),
    st.sampled_from(ENDS),
)
def test_a_reply_is_a_vote_only_where_its_verdicts_agree_or_the_last_stands_alone(declared, end):
    """Prose, a verdict, prose, a verdict …, and how it ends."""
    text = "".join(saying + form(value) for saying, value, form in declared) + end
    values = [value for _, value, _ in declared]
    alone = bool(declared) and declared[-1][0] in LINES and end != MORE
    if values and (len(set(values)) == 1 or alone):
        assert parse(text) == ParsedReply(OK, values[-1])
    else:
        assert parse(text) == UNREADABLE
