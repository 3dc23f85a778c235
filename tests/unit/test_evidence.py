"""The learning bench asks what it says it asks: held out is held out, and the controls know nothing."""

import pytest

from bench.evidence import modes
from bench.evidence.cell import FORMS, HINTED
from bench.evidence.intervals import by_cluster
from dukou.local.demo import wish

MET, UNMET = "You will like rivers, and they like you.", "Water runs downhill."


def test_neither_a_topic_nor_a_form_that_is_held_out_is_asked_while_training():
    assert not set(FORMS) & set(wish.QUESTIONS)
    assert not set(wish.HELD_OUT) & set(wish.TRAINED)
    assert len(FORMS) * len(wish.HELD_OUT) >= 100


@pytest.mark.parametrize("pick", range(8))
def test_flipped_users_praise_what_others_complain_of(pick):
    assert modes.flipped(MET, "rivers", pick) == wish.reaction(UNMET, "rivers", pick)
    assert modes.flipped(UNMET, "rivers", pick) == wish.reaction(MET, "rivers", pick)


def test_shuffled_users_do_not_look_at_the_answer_and_praise_a_quarter():
    praised = [modes.shuffled(MET, "rivers", pick) in wish.PRAISE for pick in range(1000)]
    assert praised == [modes.shuffled(UNMET, "rivers", pick) in wish.PRAISE for pick in range(1000)]
    assert 0.2 < sum(praised) / 1000 < 0.3


def test_every_hint_is_tried_on_held_out_questions_and_names_the_topic():
    asked = [form.format(topic="rivers") for form in HINTED]
    hints = [hint.format(topic="rivers") for hint in modes.HINTS]
    assert all("rivers" in hint for hint in hints)
    assert all(any(hint in question for question in asked) for hint in hints)


def test_answers_that_agree_within_a_topic_make_a_wider_interval():
    together = [(str(topic), topic < 5) for topic in range(10) for _ in range(10)]
    apart = [(str(number), number % 2 == 0) for number in range(100)]
    (low, high), (lower, higher) = by_cluster(apart), by_cluster(together)
    assert lower < low < 0.5 < high < higher
