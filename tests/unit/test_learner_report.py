import json
from dataclasses import replace
from itertools import pairwise

from dukou.settings.environment import FromEnvironment
from dukou.store.funnel import Count, VersionView
from dukou.store.processes import GONE_SECONDS, Heartbeat
from dukou.store.states import REASONS, Stage
from learner.status.facts import StatusFacts
from learner.status.funnel import LOST_BEFORE, STEPS, funnel
from learner.status.report import WIDTH, StatusReport
from tests.fakes.facts import ENGINE, QUIET, SETTINGS

LIVE = (
    Count(Stage.AWAITING_NEXT, None, 2, 5.0),
    Count(Stage.SCORABLE, "no_quorum", 3, 70.0),
    Count(Stage.SCORED, None, 5, 9.0),
    Count(Stage.BATCHED, None, 16, 1.0),
)
DROPPED = (
    Count(Stage.DROPPED, "side", 7),
    Count(Stage.DROPPED, "sampling_greedy", 4),
    Count(Stage.DROPPED, "abstained", 6),
    Count(Stage.DROPPED, "stale", 1),
)
TOTALS = (*LIVE, *DROPPED, Count(Stage.TRAINED, None, 32))
SNAPSHOT = replace(QUIET, live=LIVE, set_aside=1, published=16)


def by_name(snapshot=SNAPSHOT):
    return {step.name: step for step in funnel(TOTALS, snapshot)}


def test_every_reason_has_its_place_in_the_funnel():
    assert set(LOST_BEFORE) == set(REASONS)
    assert set(LOST_BEFORE.values()) <= set(STEPS)


def test_each_step_counts_what_reached_it():
    reached = [step.turns for step in funnel(TOTALS, SNAPSHOT)]
    assert reached == [77, 76, 69, 63, 54, 53, 48, 32, 16]


def test_nothing_disappears_between_two_steps():
    steps = funnel(TOTALS, SNAPSHOT)[1:8]
    for before, after in pairwise(steps):
        assert before.turns == after.turns + before.waiting + sum(number for _, number in after.lost)


def test_a_step_shows_who_waits_there_and_since_when():
    waiting = by_name()["next state"]
    assert (waiting.waiting, waiting.oldest) == (3, 70.0)


def test_an_unknown_spool_is_unknown_and_not_zero():
    blind = replace(SNAPSHOT, heartbeats=(Heartbeat("drainer", "draining", age=1.0),))
    assert by_name(blind)["seen"].turns is None
    seen = next(
        line
        for line in StatusReport("default", StatusFacts(SETTINGS, blind), TOTALS).text().splitlines()
        if "seen" in line
    )
    assert seen.split() == ["seen", "?"]


def test_what_a_drainer_that_is_gone_once_said_of_the_spool_is_unknown():
    gone = tuple(replace(one, age=GONE_SECONDS + 1) for one in QUIET.heartbeats)
    assert by_name(replace(SNAPSHOT, heartbeats=gone))["seen"].turns is None


def test_the_text_fits_the_terminal_whatever_it_has_to_show():
    long = "x" * 300
    wide = replace(
        SNAPSHOT,
        engines=(replace(ENGINE, reason=long),),
        versions=(VersionView(3, 2, "refused", long, 10.0),),
        heartbeats=(Heartbeat("learner", long, long, age=1.0),),
    )
    lines = StatusReport("default", StatusFacts(SETTINGS, wide), TOTALS).text().splitlines()
    assert max(map(len, lines)) <= WIDTH


def test_the_text_names_each_drop_with_its_words():
    text = StatusReport("default", StatusFacts(SETTINGS, SNAPSHOT), TOTALS).text()
    assert "- 4 lost as sampling_greedy: sampled at temperature 0" in text
    assert "The learner waits" in text


def test_the_text_names_the_setting_where_store_false_costs_a_few_turns():
    totals = (*TOTALS, Count(Stage.DROPPED, "store_false", 12))
    text = " ".join(StatusReport("default", StatusFacts(SETTINGS, SNAPSHOT), totals).text().split())
    words = 'the client sent store: false; privacy.store_false = "ignore" would train such turns'
    assert f"- 12 lost as store_false: {words}" in text


def test_without_postgres_only_the_sentence_is_left():
    text = StatusReport("default", StatusFacts(SETTINGS, trouble="connection refused")).text()
    assert text.startswith("The learner waits for Postgres")
    assert "step" not in text


def test_settings_from_the_environment_are_named_before_the_sentence_and_for_machines():
    report = StatusReport(
        "default",
        StatusFacts(SETTINGS, trouble="refused"),
        from_environment=(FromEnvironment("database.url", "DATABASE_URL"),),
    )
    first, last = report.text().split("\n\n")
    assert first == "the environment sets: database.url (DATABASE_URL)"
    assert last.startswith("The learner waits for Postgres")
    named = json.loads(report.json())["settings_from_environment"]
    assert named == [{"setting": "database.url", "variable": "DATABASE_URL"}]


def test_json_says_the_same_with_null_for_unknown():
    body = json.loads(
        StatusReport("default", StatusFacts(SETTINGS, replace(SNAPSHOT, heartbeats=())), TOTALS).json()
    )
    assert body["kind"] == "learner_off"
    assert body["funnel"][0] == {"name": "seen", "turns": None, "waiting": 0, "oldest": None, "lost": []}
    assert body["funnel"][3]["lost"] == [{"reason": "sampling_greedy", "turns": 4}]
    assert json.loads(StatusReport("default", StatusFacts(SETTINGS)).json())["kind"] == "no_postgres"


def test_json_keeps_the_keys_of_each_process_and_says_whether_it_lives():
    body = json.loads(StatusReport("default", StatusFacts(SETTINGS, SNAPSHOT), TOTALS).json())
    drainer, learner, reconciler = body["processes"]
    assert list(drainer) == ["name", "doing", "waits_for", "detail", "age", "alive"]
    assert set(drainer["detail"]) == {"in_flight", "to_write", "waiting_for_parent", "advanced_ago"}
    assert (learner["alive"], learner["detail"]["trains"]) == (True, True)
    assert reconciler["detail"] == {}
