"""The loop on fakes: a clock that jumps, and stages that raise, wait or work as the test says."""

import logging
import threading
from collections.abc import Callable
from threading import Event
from types import SimpleNamespace

import pytest
from sqlalchemy.exc import OperationalError

from dukou.store.postgres_errors import PostgresUnreachableError, SchemaError
from dukou.store.processes import LearnerDetail
from learner.heartbeat import HeartbeatWriter
from learner.loop import Loop
from learner.status.facts import StatusFacts
from learner.stop import Stop
from tests.fakes.facts import QUIET, SETTINGS

QUIET_FACTS = StatusFacts(SETTINGS, QUIET)


class JumpingClock:
    """Waiting takes no time and is written down; after so many waits the stop is asked."""

    def __init__(self, stop: Stop, waits: int) -> None:
        self.stop, self.left, self.time, self.waited = stop, waits, 0.0, []

    def now(self) -> float:
        return self.time

    def wait(self, event: Event, seconds: float) -> bool:
        self.time += seconds
        self.waited.append(seconds)
        self.left -= 1
        if self.left <= 0:
            self.stop.request()
        return event.is_set()


def short(current: int = 3) -> SimpleNamespace:
    return SimpleNamespace(current=current, needed=16, oldest_seconds=12.0, because="")


class FakeStages:
    """Answers come from lists; the last one is repeated. An exception in a list is raised."""

    poll_interval = 1.0
    dry_run = False

    def __init__(self, **answers: list[object]) -> None:
        self.answers = {
            "connect": [None],
            "recover": [None],
            "score": [SimpleNamespace(claimed=0, waiting_because=None)],
            "batch": [short()],
            "open_batch": [None],
            "train": ["trained step=1"],
            "publish": [None],
            "facts": [QUIET_FACTS],
        } | answers
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(*_: object, **__: object) -> object:
            self.calls.append(name)
            answers = self.answers.get(name, [None])
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return call


def loop_of(stages: FakeStages, waits: int) -> Loop:
    stop = Stop()
    clock = JumpingClock(stop, waits)
    heartbeat = HeartbeatWriter("learner", LearnerDetail(scores=True, trains=True))
    return Loop(stages, stop, clock, heartbeat, stall_warn_interval=30)


def learn(stages: FakeStages, waits: int) -> Loop:
    loop = loop_of(stages, waits)
    loop.repeat(loop.learn, loop.failed, loop.stop.event)
    return loop


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="dukou.learner")
    return lambda: [record.getMessage() for record in caplog.records]


def test_the_log_begins_with_the_promised_lines(lines):
    learn(FakeStages(), waits=1)
    assert lines()[0] == "submission resumed"
    assert lines()[1].startswith("waiting for samples batch_size=16 current=3 oldest=12s because ")


def test_a_wait_is_said_when_the_count_changes_and_every_interval(lines):
    learn(FakeStages(batch=[short(3), short(4), short(4)]), waits=40)
    counts = [line.split()[4] for line in lines() if line.startswith("waiting for samples")]
    assert counts == ["current=3", "current=4", "current=4"]


def test_a_closed_batch_is_trained_and_published_at_once(lines):
    stages = FakeStages(batch=[7, short()], publish=[None, "published version=1", None])
    loop = learn(stages, waits=2)
    assert lines()[1:3] == ["trained step=1", "published version=1"]
    assert loop.clock.waited == [0.0, 1.0]


def test_postgres_may_be_down_at_start(lines):
    stages = FakeStages(
        connect=[PostgresUnreachableError("Postgres at db:5432 cannot be used: refused"), None]
    )
    learn(stages, waits=2)
    assert lines()[0] == "waiting for Postgres because Postgres at db:5432 cannot be used: refused"
    assert lines()[1] == "submission resumed"


def test_tables_may_be_missing_at_start(lines):
    learn(
        FakeStages(connect=[SchemaError("db has no Dukou tables: run `alembic upgrade head`"), None]), waits=2
    )
    assert lines()[0] == "waiting for the tables because db has no Dukou tables: run `alembic upgrade head`"


def test_postgres_may_go_away_in_between(lines):
    gone = OperationalError("select", {}, Exception("server closed the connection\nhint"))
    stages = FakeStages(batch=[short(), gone, short()])
    learn(stages, waits=3)
    assert "waiting for Postgres because server closed the connection" in lines()
    assert stages.calls.count("mark_disconnected") == 1
    assert lines().count("submission resumed") == 1


def test_a_raising_stage_is_tried_again_with_growing_pauses(lines, caplog):
    loop = learn(FakeStages(batch=[7], train=[RuntimeError("out of memory")]), waits=7)
    assert loop.clock.waited == [1, 2, 4, 8, 16, 30, 30]
    said = [record for record in caplog.records if "RuntimeError: out of memory" in record.getMessage()]
    assert [record.exc_info is not None for record in said] == [True, False, False]
    assert loop.heartbeat.current().learner.trouble == "RuntimeError: out of memory"


def test_the_trainer_is_made_anew_after_a_failed_step():
    stages = FakeStages(batch=[7], train=[RuntimeError("boom"), "trained step=1"])
    loop = learn(stages, waits=2)
    assert stages.calls.count("discard_trainer") == 1
    assert loop.heartbeat.current().learner.trouble is None


def test_success_ends_the_growing_pauses():
    stages = FakeStages(batch=[RuntimeError("a"), RuntimeError("b"), short(), RuntimeError("c"), short()])
    assert learn(stages, waits=5).clock.waited == [1, 2, 1, 1, 1]


def test_a_stop_before_the_step_trains_nothing(lines):
    stages = FakeStages(batch=[7])
    loop = loop_of(stages, waits=99)
    stages.answers["publish"] = [None]
    loop.stop.request()
    loop.repeat(loop.learn, loop.failed, Event())
    assert "train" not in stages.calls
    assert lines()[-1].startswith("stopped in the middle")


def test_dry_run_closes_batches_and_says_that_nothing_is_trained(lines):
    stages = FakeStages(batch=[7, short()])
    stages.dry_run = True
    learn(stages, waits=1)
    assert lines()[-1] == "waiting for training because trainer.dry_run is on: batch 7 is closed, not trained"
    assert "train" not in stages.calls


def test_scoring_that_raises_does_not_touch_training(lines):
    stages = FakeStages(score=[ValueError("bad rubric")])
    loop = loop_of(stages, waits=1)
    loop.repeat(loop.score, loop.scoring_failed, loop.stop.event)
    assert lines() == ["waiting for scoring because ValueError: bad rubric"]
    assert "discard_trainer" not in stages.calls


def test_a_paused_judge_is_said_and_reported(lines):
    stages = FakeStages(score=[SimpleNamespace(claimed=0, waiting_because="401: TAOTOKEN_API_KEY is wrong")])
    loop = loop_of(stages, waits=5)
    loop.repeat(loop.score, loop.scoring_failed, loop.stop.event)
    assert lines() == ["waiting for the judge because 401: TAOTOKEN_API_KEY is wrong"]
    assert loop.heartbeat.current().learner.judge_paused == "401: TAOTOKEN_API_KEY is wrong"


def test_scoring_goes_on_without_pause_while_there_is_work():
    busy, idle = (SimpleNamespace(claimed=n, waiting_because=None) for n in (16, 0))
    loop = loop_of(FakeStages(score=[busy, busy, idle]), waits=3)
    loop.repeat(loop.score, loop.scoring_failed, loop.stop.event)
    assert loop.clock.waited == [0.0, 0.0, 1.0]


def test_run_scores_beside_the_main_loop_and_ends_both():
    scored = Event()
    stages = FakeStages()
    loop = loop_of(stages, waits=10**9)

    def score() -> float:
        scored.set()
        if "batch" in stages.calls:
            loop.stop.request()
        return 0.0

    loop.score = score
    loop.run()
    assert scored.is_set()
    assert "batch" in stages.calls
    assert "score" not in {thread.name for thread in threading.enumerate()}


def test_train_alone_waits_for_a_closed_batch(lines):
    loop = loop_of(FakeStages(open_batch=[None, 7]), waits=2)
    loop.repeat(loop.train_closed, loop.failed, loop.stop.event)
    assert lines()[1:] == ["waiting for a closed batch because every batch is trained", "trained step=1"]


def test_batch_alone_leaves_a_closed_batch_to_a_trainer(lines):
    stages = FakeStages(batch=[7])
    loop = loop_of(stages, waits=1)
    loop.repeat(loop.batch, loop.failed, loop.stop.event)
    assert lines() == ["waiting for a trainer because batch 7 is closed"]
    assert "train" not in stages.calls
