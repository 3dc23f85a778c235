"""The scripted user's wish, and the arithmetic of the demo's report."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dukou.local.demo import __main__ as demo
from dukou.local.demo import report, users, wish
from learner.score.rules_judge import of_user


@pytest.mark.parametrize(
    ("reply", "met"),
    [
        ("You can see rivers from your window.", True),
        ("River water is what your town drinks.", True),
        ("Rivers carry water to the sea.", False),  # speaks to nobody
        ("You will like them very much.", False),  # names nothing
        ("Rivers and you and you and you and you and you", False),  # repeats itself
        ("The youth of rivers is short.", True),  # a word that begins with "you" is enough
        ("Rivers: bayou country.", False),  # inside a word is not
        ("", False),
    ],
)
def test_the_wish_asks_for_address_topic_and_no_repetition(reply, met):
    assert wish.is_met(reply, "rivers") is met


def test_held_out_topics_are_never_asked_in_training():
    assert not set(wish.TRAINED) & set(wish.HELD_OUT)
    assert len(wish.TRAINED) == len(wish.HELD_OUT) == 20


def test_a_topic_is_found_in_every_question_of_ours():
    for topic in wish.TOPICS:
        for form in wish.QUESTIONS + wish.HELD_OUT_QUESTIONS:
            assert wish.topic_of(wish.question(topic, form).text) == topic


def test_the_user_praises_what_it_likes_and_corrects_the_rest():
    assert wish.reaction("You will love rivers.", "rivers", 0) in wish.PRAISE
    assert wish.reaction("Water.", "rivers", 1) == wish.COMPLAINT[1].format(topic="rivers")


def test_an_interval_never_leaves_its_share_outside():
    for n in range(1, 200):
        for met in (0, 1, n):
            low, high = report.Rate(met, n).interval()
            assert 0 - 1e-12 <= low <= met / n <= high <= 1 + 1e-12


def test_wilson_interval_of_ten_in_forty():
    low, high = report.Rate(10, 40).interval()
    assert (round(low, 4), round(high, 4)) == (0.1419, 0.4019)


def test_no_answers_have_no_rate():
    assert math.isnan(report.rate([]).share)


def test_thirds_are_taken_in_order_of_asking():
    asked = tuple(report.Asked(version=i // 3, met=i >= 6) for i in range(9))
    found = report.Report(9, 0, asked, ())
    assert (found.first.met, found.last.met, found.last.n) == (0, 3, 3)
    assert [r.met for r in found.by_version().values()] == [0, 0, 3]


def published(version: int, reported: str | None) -> report.Published:
    return report.Published(version, "0.5", "0.1", reported, "0.05")


@given(st.lists(st.booleans(), max_size=30))
def test_the_table_and_the_json_count_the_same_versions(served):
    versions = [published(n, str(n) if is_served else None) for n, is_served in enumerate(served, 1)]
    found = report.Report(9, 0, (), (published(0, "0"), *versions))
    _, *lines, last = report.table(found).splitlines()
    shown = [line.split() for line in lines]
    assert len(shown) == len(served) + 1
    counted = sum(words[0] != "0" and words[-2] == words[0] for words in shown)
    line = demo.summary(found, users.Tally(), [report.Rate(1, 2)] * 2, [2.0, 2.0])
    assert line["versions"] == counted == sum(served)
    assert last == f"{len(served)} versions were trained, and the engine served {counted} of them"


@pytest.mark.parametrize("pick", range(4))
def test_the_rules_read_every_wording_of_the_users_as_it_is_meant(pick):
    praise = wish.reaction("You will love rivers.", "rivers", pick)
    complaint = wish.reaction("Water.", "rivers", pick)
    assert of_user(praise, "Explain rivers to me.").value == 1
    assert of_user(complaint, "Explain rivers to me.").value == -1
