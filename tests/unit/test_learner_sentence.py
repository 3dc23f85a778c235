from dataclasses import replace

import pytest

from dukou.settings.learning import GuardSettings
from dukou.store.batches import EndedBatch
from dukou.store.funnel import Count, OpenBatch
from dukou.store.processes import GONE_SECONDS, STOPPED, DrainerDetail, Heartbeat, LearnerDetail
from dukou.store.states import REASONS, Stage
from learner.status.facts import StatusFacts
from learner.status.remedies import REMEDIES
from learner.status.sentence import explain, from_inside, sentence
from tests.fakes.facts import DRAINER, ENGINE, LEARNER, QUIET, RECONCILER, SETTINGS, URL


def facts(**changes) -> StatusFacts:
    return StatusFacts(SETTINGS, replace(QUIET, **changes))


def live(**turns: int) -> dict[str, tuple[Count, ...]]:
    counts = tuple(Count(Stage(stage), None, number, 12.0) for stage, number in turns.items())
    return {"live": counts, "recent": counts}


def beats(*changed: Heartbeat, without: str = "") -> dict[str, tuple[Heartbeat, ...]]:
    names = {one.name for one in changed}
    kept = (one for one in QUIET.heartbeats if one.name not in {*names, without})
    return {"heartbeats": (*kept, *changed)}


def gone(heartbeat: Heartbeat) -> Heartbeat:
    return replace(heartbeat, age=GONE_SECONDS + 1)


BATCH = OpenBatch(7, 16, "full", 5.0)

CASES = {
    "no_postgres": (
        StatusFacts(SETTINGS, trouble="connection refused"),
        "waits for Postgres because it cannot be reached",
    ),
    "no_tables": (StatusFacts(SETTINGS, schema_missing=True), "alembic upgrade head"),
    "learner_off": (
        facts(**beats(without="learner"), **live(scorable=2)),
        "2 turns wait for it, and nothing is lost",
    ),
    "in_trouble": (
        facts(
            **beats(replace(LEARNER, detail=replace(LEARNER.learner, trouble="FileNotFoundError: no model")))
        ),
        "the last try failed (FileNotFoundError: no model)",
    ),
    "dry_run": (
        StatusFacts(replace(SETTINGS, dry_run=True), replace(QUIET, open_batch=BATCH)),
        "trains nothing because trainer.dry_run is on and batch 7 (16 turns)",
    ),
    "training": (facts(open_batch=BATCH), "trains batch 7 (16 turns)"),
    "publishing": (
        facts(live_version=4),
        f"waits for {URL} to load version 4 because it still serves version 3",
    ),
    "publish_failed": (facts(live_version=4, publish_error="400 shape"), "loading failed (400 shape)"),
    "no_reconciler": (facts(live_version=4, **beats(gone(RECONCILER))), "no reconciler has reported lately"),
    "engine_dead": (
        facts(engines=(replace(ENGINE, state="dead", reason="out of memory"),)),
        "is dead (out of memory)",
    ),
    "no_gateway": (facts(**beats(without="drainer")), "its drainer has never reported"),
    "no_traffic": (
        facts(recent=()),
        "no turn has been recorded yet; send a chat request to http://127.0.0.1:8080",
    ),
    "undrained": (
        facts(
            recent=(),
            **beats(replace(DRAINER, detail=DrainerDetail(1, 8, 0))),
        ),
        "9 requests still lie in the spool",
    ),
    "judge_paused": (
        facts(
            **live(scorable=2),
            **beats(replace(LEARNER, detail=replace(LEARNER.learner, judge_paused="401: wrong key"))),
        ),
        "waits for the judge because 401: wrong key",
    ),
    "no_scorer": (
        facts(**live(scorable=2), **beats(replace(LEARNER, detail=LearnerDetail(trains=True)))),
        "2 turns could be scored and no process scores",
    ),
    "frozen": (
        facts(**live(scored=20), ended=(EndedBatch(3, GuardSettings(), "drift", "kl/mean is 3"),)),
        "learning is frozen: kl/mean is 3; go back with `python -m learner rollback`",
    ),
    "samples": (
        facts(**live(scored=3, scorable=1, awaiting_next=2)),
        "3 of 16 samples are there, 1 turn to be scored, 2 turns awaiting a next state",
    ),
    "next_state": (facts(**live(awaiting_next=1)), "nothing has followed yet on 1 turn"),
    "all_dropped": (
        facts(recent=(Count(Stage.DROPPED, "side", 2), Count(Stage.DROPPED, "sampling_greedy", 5))),
        "5 of the newest 7 turns dropped as sampling_greedy",
    ),
    "traffic": (facts(), "every turn so far is trained or dropped, the last one came 90s ago"),
}


def test_the_setting_is_named_that_keeps_turns_with_store_false_from_training():
    words = sentence(facts(recent=(Count(Stage.DROPPED, "store_false", 12),)))
    assert "12 of the newest 12 turns dropped as store_false (the client sent store: false;" in words
    assert 'set privacy.store_false = "ignore"' in words


def test_while_turns_wait_it_still_says_that_most_are_dropped():
    """What is left out before it is judged waits for its next state first."""
    recent = (Count(Stage.DROPPED, "sampling_truncated", 8), Count(Stage.AWAITING_NEXT, None, 1))
    words = sentence(facts(**{**live(awaiting_next=1), "recent": recent}))
    assert "nothing has followed yet on 1 turn" in words
    assert "8 of the newest 9 turns dropped as sampling_truncated" in words
    assert "batch.truncated" in words


@pytest.mark.parametrize("kind", CASES)
def test_each_state_has_its_own_sentence(kind):
    given, words = CASES[kind]
    assert explain(given).kind == kind
    assert words in sentence(given)


def test_a_sentence_is_one_line_that_says_what_why_and_what_would_change_it():
    for given, _ in CASES.values():
        text = sentence(given)
        assert text.startswith("The learner ")
        assert " because " in text
        assert "; " in text
        assert text.endswith(".")
        assert "\n" not in text


def test_a_report_older_than_the_limit_counts_as_gone():
    at_limit = replace(LEARNER, age=GONE_SECONDS)
    assert explain(facts(**beats(at_limit))).kind == "traffic"
    assert explain(facts(**beats(gone(LEARNER)))).kind == "learner_off"


def test_a_process_that_stopped_in_order_is_off_at_once():
    assert explain(facts(**beats(replace(LEARNER, doing=STOPPED)))).kind == "learner_off"


def test_a_dead_engine_is_named_when_a_version_waits_for_it():
    dead = replace(ENGINE, state="dead", reason="killed")
    answer = explain(facts(live_version=4, engines=(dead,)))
    assert (answer.kind, "to load version 4" in answer.does) == ("engine_dead", True)


def test_one_living_engine_is_enough_for_traffic():
    dead = replace(ENGINE, url="http://b", state="dead")
    assert explain(facts(engines=(ENGINE, dead))).kind == "traffic"


def test_a_missing_gateway_is_not_named_while_there_is_work():
    assert explain(facts(**beats(without="drainer"), **live(scorable=1))).kind == "samples"
    assert explain(facts(**beats(without="drainer"), **live(scored=16))).kind == "samples"


def test_a_batch_that_fills_slowly_says_what_most_turns_are_dropped_for():
    recent = (Count(Stage.SCORED, None, 1), Count(Stage.DROPPED, "side", 9))
    given = facts(live=(Count(Stage.SCORED, None, 1, 3.0),), recent=recent)
    assert "9 of the newest 10 turns dropped as side" in sentence(given)


def test_turns_that_no_batch_has_room_for_name_the_setting():
    assert "20 samples are there and a batch closes next, unless batch.max_share_* forbids it" in sentence(
        facts(**live(scored=20))
    )


def test_turns_that_are_scored_again_say_why():
    given = facts(live=(Count(Stage.SCORABLE, "no_quorum", 2, 9.0), Count(Stage.SCORED, None, 1, 9.0)))
    assert "2 turns to be scored (2 again after no_quorum)" in sentence(given)


def test_a_scorer_apart_from_the_trainer_is_seen():
    trainer = replace(LEARNER, name="trainer", detail=LearnerDetail(trains=True))
    scorer = replace(LEARNER, name="scorer", detail=LearnerDetail(scores=True))
    assert explain(facts(**beats(trainer, scorer, without="learner"), **live(scorable=1))).kind == "samples"


def test_a_running_learner_never_says_of_itself_that_it_is_off():
    given = facts(**beats(without="learner"))
    assert explain(from_inside(given, LEARNER)).kind == "traffic"


def test_remedies_speak_only_of_known_reasons():
    assert set(REMEDIES) <= set(REASONS)


def test_a_reason_without_a_remedy_points_to_the_handbook():
    given = facts(recent=(Count(Stage.DROPPED, "empty_answer", 5),))
    assert "docs/operations.md" in sentence(given)
