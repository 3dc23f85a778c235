"""Caps, rate limits, rubrics by tenant, and history, with judges that are scripted."""

import json
import threading
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, text, update

from dukou.settings import model
from dukou.settings.model import Config
from dukou.store import calls as costs
from dukou.store import calls as ledger
from dukou.store.calls import Call, Caps, Costs
from dukou.store.scores import Score, record
from dukou.store.sessions import Window
from dukou.store.states import Stage
from dukou.store.tables import calls, scores, turn_states, votes
from learner.cli import main
from learner.score.history import History
from learner.score.judge import RulesJudge
from learner.score.llm_judge import LLMJudge
from learner.score.scorer import MAX_ATTEMPTS, Scorer
from learner.status.read import read_from, settings_of
from tests.fakes.judge import FakeJudge, fails, says, verdict
from tests.fakes.turns import add_turn, turn_id
from tests.integration.test_scorer import Scripted, add_pair, pass_time, rows, state_of

CONFIG = Config.model_validate({"judge": {"kind": "rules"}})
LLM = {"kind": "llm", "api_key": "k", "model": "openai/m", "concurrency": 1, "timeout_sec": 5}


def judge_of(url, **more):
    settings = model.JudgeSettings.model_validate(LLM | {"api_base": url} | more)
    return LLMJudge(settings, clock=lambda: datetime.now(UTC))


def pay(connection, call):
    ledger.record(connection, call, None)
    ledger.add_up(connection, [call])


def spent(db):
    with db.connect() as connection:
        return costs.spent(connection)


def test_a_cap_stops_scoring_with_what_is_in_flight_and_keeps_the_turns(db):
    """J15."""
    for number in range(10):
        add_pair(db, number)
    judge = Scripted(lambda n: 1)
    judge.votes = judge.quorum = judge.concurrency = 1
    judge.caps = Caps(usd_total=0.2)  # a call costs 0.05
    report = Scorer(db, CONFIG, judge).run_once(100)
    assert "judge.usd_total (0.2) is reached" in report.waiting_because
    assert 4 <= len(judge.asked) <= 4 + 2  # two workers: one more call each was in flight
    assert spent(db).cost_usd == pytest.approx(0.05 * len(judge.asked))
    with db.connect() as connection:
        left = select(turn_states.c.attempts).where(turn_states.c.stage == Stage.SCORABLE)
        assert set(connection.scalars(left)) == {0}
    judge.caps = Caps(usd_total=100)
    assert Scorer(db, CONFIG, judge).run_once(100).scored == 10 - report.scored


def test_a_day_begins_anew(db):
    add_pair(db, 0)
    with db.begin() as connection:
        pay(connection, Call("judge", "m", "ok", 1.0, 10, 10, 5.0))
    judge = Scripted(lambda n: 1)
    judge.caps = Caps(usd_per_day=5)
    assert "usd_per_day" in Scorer(db, CONFIG, judge).run_once(1).waiting_because
    with db.begin() as connection:
        connection.execute(text("update spending set day = day - 1"))
    assert Scorer(db, CONFIG, judge).run_once(1).scored == 1


def test_every_attempt_is_in_the_ledger_and_its_sums(db):
    """J15."""
    add_pair(db, 0)
    replies = [verdict(1), fails(500), says("", finish="length"), says("no idea")]
    with FakeJudge(lambda n, body: replies[n % 4]) as fake:
        judge = judge_of(fake.url, votes=3, quorum=1, usd_per_million_in=1000, usd_per_million_out=2000)
        Scorer(db, CONFIG, judge).run_once(1)
    outcomes = sorted(row.outcome for row in rows(db, calls))
    assert outcomes == ["empty", "http_500", "ok", "unparsable"]
    assert spent(db) == Costs(calls=4, tokens=330, cost_usd=pytest.approx(0.36), unpriced=0)


def test_status_shows_each_fault_its_count_and_the_cap_that_stopped(db):
    with db.begin() as connection:
        for outcome in ("ok", "ok", "http_401", "unparsable"):
            pay(connection, Call("judge", "m", outcome, 1.0, 10, 10, 0.5))
    report = read_from(db, "default", settings_of(CONFIG), Caps(usd_per_day=1))
    for words in (
        "judge: 4 calls in 24 h",
        "2 ok",
        "1 http_401",
        "1 unparsable",
        "stopped: judge.usd_per_day",
    ):
        assert words in report.text()
    assert '"outcome": "http_401"' in report.json()


def test_a_full_minute_leaves_turns_for_later_and_uses_up_no_attempt(db):
    for number in range(4):
        add_pair(db, number)
    with FakeJudge(lambda n, body: verdict(1)) as fake:
        judge = judge_of(fake.url, votes=1, quorum=1, requests_per_minute=3)
        report = Scorer(db, CONFIG, judge).run_once(10)
        assert len(fake.requests) == 3
    assert report.scored == 3
    assert "judge.requests_per_minute (3) is reached" in report.waiting_because
    assert state_of(db, turn_id(6)).attempts == 0


def test_a_turn_that_no_judge_can_read_uses_up_its_attempts_also_at_the_limit_of_the_minute(db):
    turn = add_pair(db, 0)
    judge = Scripted(lambda n: "unparsable")
    judge.vote = lambda case, n, ask=judge.vote: (ask(case, n), setattr(judge, "because", "full"))[0]
    scorer = Scorer(db, CONFIG, judge)
    for _ in range(MAX_ATTEMPTS):
        judge.because = None
        scorer.run_once(1)
        pass_time(db)
    assert (state_of(db, turn).stage, state_of(db, turn).reason) == ("dropped", "no_quorum")


def test_a_prompt_that_is_too_long_for_the_judge_is_cut_shorter_in_the_middle(db):
    """J18."""
    said = "x" * 9000
    add_pair(db, 0, then=said)

    def script(n, body):
        size = len(body["messages"][-1]["content"])
        return fails(400, "maximum context length is 2000 tokens") if size > 1000 else verdict(-1)

    with FakeJudge(script) as fake:
        Scorer(db, CONFIG, judge_of(fake.url, votes=1, quorum=1, case_characters=9000)).run_once(1)
        assert [len(prompt) > 1000 for prompt in fake.prompts] == [True, False]
        assert "characters left out" in fake.prompts[-1]
    assert [(row.value, row.reason) for row in rows(db, scores)] == [(-1.0, "majority")]
    assert sorted(row.outcome for row in rows(db, calls)) == ["context_overflow", "ok"]


def test_a_key_file_is_read_anew_for_every_call(db, tmp_path):
    """J10: a key that rotates."""
    add_pair(db, 0)
    key = tmp_path / "key"
    key.write_text("old\n")
    with FakeJudge(lambda n, body: verdict(1)) as fake:
        judge = judge_of(fake.url, api_key="", api_key_file=str(key), votes=1, quorum=1)
        Scorer(db, CONFIG, judge).run_once(1)
        key.write_text("new\n")
        add_pair(db, 1)
        Scorer(db, CONFIG, judge).run_once(1)
        key.unlink()
        assert "judge.api_key_file" in judge.waiting()
    assert [headers["authorization"] for headers in fake.headers] == ["Bearer old", "Bearer new"]


def test_each_tenant_is_judged_by_its_own_rubric(db, tmp_path):
    (tmp_path / "strict@1.md").write_text("Be strict.")
    with db.begin() as connection:
        for number, tenant in ((0, "acme"), (2, "other")):
            add_turn(connection, number, Stage.SCORABLE, next_number=number + 1, tenant=tenant)
            then = [{"role": "user", "content": "a"}, {"role": "assistant"}, {"role": "user", "content": "b"}]
            add_turn(connection, number + 1, Stage.AWAITING_NEXT, messages=then, parent_messages=2)
    with FakeJudge(lambda n, body: verdict(1)) as fake:
        more = {"votes": 1, "quorum": 1, "rubrics_dir": str(tmp_path), "rubric_for": ["tenant:acme=strict@1"]}
        scorer = Scorer(db, CONFIG, judge_of(fake.url, **more))
        for _ in range(2):
            scorer.run_once(1)  # two at once would be asked about in either order
        told = [request["messages"][0]["content"] == "Be strict." for request in fake.requests]
    assert told == [True, False]
    assert [row.rubric for row in rows(db, scores)] == ["strict@1", "default@2"]
    assert [row.rubric for row in rows(db, votes)] == ["strict@1", "default@2"]


def test_history_is_judged_again_beside_the_old_scores_and_only_in_its_window(db):
    for number in range(4):
        add_pair(db, number)
    Scorer(db, CONFIG).run_once(10)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    window = Window(epoch + timedelta(milliseconds=2), epoch + timedelta(milliseconds=6))  # turns 2 and 4
    judge = Scripted(lambda n: -1)
    report = History(db, judge, window).run()
    assert (report.claimed, report.scored) == (2, 2)
    found = {(row.turn_id, row.judge): row.value for row in rows(db, scores)}
    assert found[turn_id(2), "scripted"] == found[turn_id(4), "scripted"] == -1.0
    assert len(found) == 6
    assert {state_of(db, turn_id(n)).stage for n in (0, 2, 4, 6)} == {"scored"}
    assert state_of(db, turn_id(2)).lease_owner is None


def test_history_pays_no_vote_twice_and_leaves_what_waits_for_its_first_judgement(db):
    add_pair(db, 0)
    waits = add_pair(db, 1)
    with db.begin() as connection:
        judged = turn_states.c.turn_id == turn_id(0)
        connection.execute(update(turn_states).where(judged).values(stage=Stage.TRAINED))
    judge = Scripted(lambda n: 1)
    History(db, judge, Window()).run()
    again = Scripted(lambda n: 1)
    History(db, again, Window()).run()
    assert (len(judge.asked), len(again.asked)) == (3, 0)
    assert state_of(db, turn_id(0)).stage == "trained"
    assert (state_of(db, waits).stage, state_of(db, waits).attempts) == ("scorable", 0)


def test_history_scores_what_no_judge_could_so_far_and_keeps_what_it_cannot(db):
    unclear, greedy = add_pair(db, 0, "👍"), add_pair(db, 1)
    Scorer(db, CONFIG).run_once(1)
    with db.begin() as connection:
        of_greedy = turn_states.c.turn_id == greedy
        values = {"stage": Stage.DROPPED, "reason": "stale"}
        connection.execute(update(turn_states).where(of_greedy).values(**values))
    assert state_of(db, unclear).reason == "abstained"
    History(db, Scripted(lambda n: 1), Window()).run()
    assert state_of(db, unclear).stage == "scored"
    assert (state_of(db, greedy).stage, state_of(db, greedy).reason) == ("dropped", "stale")


def test_two_runs_over_history_judge_each_turn_once(db):
    for number in range(8):
        add_pair(db, number)
    Scorer(db, CONFIG).run_once(10)
    judge = Scripted(lambda n: 1)
    threads = [threading.Thread(target=History(db, judge, Window()).run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([row for row in rows(db, votes) if row.judge == "scripted"]) == 24
    assert len(judge.asked) == 24


def test_the_rules_judge_costs_nothing():
    assert not RulesJudge.caps.any


def test_the_shell_judges_again_and_compares_judges_with_people(db, database_url, tmp_path, capsys):
    for number, said in enumerate(["thanks!", "That's wrong.", "thanks!"]):
        add_pair(db, number, said)
    Scorer(db, CONFIG).run_once(10)
    with db.begin() as connection:
        for number, value in ((0, 1.0), (2, -1.0), (4, -1.0)):
            scored = Score(value, "feedback")
            record(connection, turn_id(number), "feedback", "feedback@1", scored, injection_suspected=False)
    file = tmp_path / "config.toml"
    file.write_text(f'[database]\nurl = "{database_url}"\n')
    assert main(["calibrate", "--config", str(file), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    [found] = report["agreement"]
    assert (found["first"], found["second"], found["turns"]) == ("feedback", "rules@1 rules@1", 3)
    assert found["confusion"] == [[1, 0, 1], [0, 0, 0], [0, 0, 1]]
    assert found["agreement"] == pytest.approx(2 / 3)
    assert report["length_bias"][0]["correlation"] is None
    assert main(["score", "--config", str(file), "--since", "1970-01-01", "--judge", "rules"]) == 0
    assert "3 turns judged, 3 scored" in capsys.readouterr().out
