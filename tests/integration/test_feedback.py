"""Feedback from the endpoint to the reward: spool, drainer and scorer, on real Postgres."""

from datetime import UTC, datetime

import httpx
import pytest
from sqlalchemy import select, text

from dukou.settings.model import Config
from dukou.settings.paths import StatePaths
from dukou.store import states
from dukou.store.states import Stage
from dukou.store.tables import demonstrations, feedback, scores, turn_states
from gateway.drain.drainer import Drainer
from gateway.relay.app import GatewayApp
from gateway.spool.reader import SpoolReader
from learner.score.forks import apply_siblings
from learner.score.scorer import Scorer
from tests.fakes.turns import add_turn, turn_id

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RULES = Config.model_validate({"judge": {"kind": "rules"}})


class Desk:
    """A gateway without engine, its drainer, and a scorer."""

    def __init__(self, db, folder):
        self.db = db
        self.config = Config.model_validate(
            {"state_dir": folder, "judge": {"kind": "rules"}, "gateway": {"keys": []}}
        )
        self.app = GatewayApp(self.config)
        self.app._spool.open()
        self.drainer = Drainer(self.config, SpoolReader(StatePaths.for_config(self.config).spool))
        self.scorer = Scorer(db, self.config)

    async def post(self, body, **headers):
        transport = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            return await client.post("/v1/feedback", json=body, headers=sent)

    def work(self):
        """What is spooled becomes rows, and rows become scores."""
        self.drainer.drain_once(self.db)
        return self.scorer.run_once(100)

    def turn(self, number=0, stage=Stage.AWAITING_NEXT, reason=None, **more):
        with self.db.begin() as connection:
            return add_turn(connection, number, stage, reason, tenant="default", **more)

    def state(self, turn):
        with self.db.connect() as connection:
            row = connection.execute(select(turn_states).where(turn_states.c.turn_id == turn)).one()
        return row.stage, row.reason

    def score(self, turn):
        query = select(scores.c.value, scores.c.reason).where(scores.c.turn_id == turn)
        with self.db.connect() as connection:
            return [tuple(row) for row in connection.execute(query.order_by(scores.c.judge))]

    def rows(self, table):
        with self.db.connect() as connection:
            return connection.execute(select(table)).all()


@pytest.fixture
def desk(db, tmp_path):
    made = Desk(db, tmp_path)
    yield made
    made.app._spool.close()


pytestmark = pytest.mark.anyio


async def test_a_rating_scores_a_turn_that_nothing_followed(desk):
    turn = desk.turn()
    reply = await desk.post({"turn_id": turn.hex, "rating": "up"})
    assert reply.status_code == 202
    assert reply.json()["turn_id"] == turn.hex
    assert desk.work().by_evidence == 1
    assert desk.state(turn) == ("scored", None)
    assert desk.score(turn) == [(1.0, "feedback")]


async def test_a_completion_id_is_the_turn_and_a_choice_its_own_turn(desk):
    turn = desk.turn()
    await desk.post({"completion_id": f"chatcmpl-{turn.hex}", "score": 0.5})
    await desk.post({"turn_id": str(turn), "choice_index": 1, "score": -1})
    desk.work()
    assert desk.score(turn) == [(0.5, "feedback")]
    assert [row.turn_id for row in desk.rows(feedback) if row.score == -1] == [None]


async def test_a_session_names_its_last_main_turn_before_the_feedback(desk):
    desk.turn(0, session_id="chat", ordinal=0)
    last = desk.turn(1, session_id="chat", ordinal=1)
    desk.turn(2, reason="side", stage=Stage.DROPPED, session_id="chat", kind="side")
    await desk.post({"session_id": "chat", "rating": -1})
    desk.work()
    assert [row.turn_id for row in desk.rows(feedback)] == [last]
    assert desk.score(last) == [(-1.0, "feedback")]


async def test_a_repeated_request_is_one_feedback(desk):
    turn = desk.turn()
    first = await desk.post({"turn_id": turn.hex, "rating": 1}, idempotency_key="k")
    again = await desk.post({"turn_id": turn.hex, "rating": 1}, idempotency_key="k")
    assert first.json()["id"] == again.json()["id"]
    desk.work()
    assert len(desk.rows(feedback)) == 1


async def test_feedback_outranks_the_judge_and_late_feedback_scores_again(desk):
    history = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    turn = desk.turn(0, Stage.SCORABLE, next_number=1)
    desk.turn(1, messages=[*history, {"role": "user", "content": "thanks!"}], parent_messages=2)
    desk.work()
    assert desk.score(turn) == [(1.0, "majority")]
    await desk.post({"turn_id": turn.hex, "rating": "down"})
    desk.work()
    assert desk.score(turn) == [(-1.0, "feedback"), (1.0, "majority")]
    with desk.db.connect() as connection:
        counted = connection.scalar(text("select score from trajectory where turn_id = :id"), {"id": turn})
    assert counted == -1.0


async def test_each_raters_last_word_counts_and_raters_are_averaged(desk):
    turn = desk.turn()
    for user, rating in (("ann", -1), ("ann", 1), ("bob", 0)):
        await desk.post({"turn_id": turn.hex, "rating": rating, "user": user})
    desk.work()
    assert desk.score(turn) == [(0.5, "feedback")]


@pytest.mark.parametrize("reason", ["no_next_state", "no_quorum", "abstained"])
async def test_feedback_takes_back_a_drop_for_want_of_a_score(desk, reason):
    turn = desk.turn(0, Stage.DROPPED, reason)
    await desk.post({"turn_id": turn.hex, "rating": 1})
    desk.work()
    assert desk.state(turn) == ("scored", None)


@pytest.mark.parametrize(
    ("stage", "reason"), [(Stage.DROPPED, "sampling_greedy"), (Stage.BATCHED, None), (Stage.TRAINED, None)]
)
async def test_feedback_never_makes_a_turn_trainable_nor_trains_it_twice(desk, stage, reason):
    turn = desk.turn(0, stage, reason)
    await desk.post({"turn_id": turn.hex, "rating": 1})
    desk.work()
    assert desk.state(turn) == (stage, reason)
    assert desk.score(turn) == [(1.0, "feedback")]


async def test_a_comment_alone_changes_no_score(desk):
    turn = desk.turn()
    await desk.post({"turn_id": turn.hex, "comment": "Too long, I wanted one sentence."})
    desk.work()
    assert desk.score(turn) == []
    assert desk.state(turn) == ("awaiting_next", None)
    assert desk.rows(feedback)[0].applied_at is not None


async def test_a_correction_is_a_complaint_and_a_demonstration_and_a_preference(desk):
    turn = desk.turn()
    await desk.post({"turn_id": turn.hex, "correction": "Paris, on the Seine."})
    desk.work()
    assert desk.score(turn) == [(-1.0, "feedback")]
    assert [(row.source, row.answer) for row in desk.rows(demonstrations)] == [
        ("feedback", "Paris, on the Seine.")
    ]
    with desk.db.connect() as connection:
        pairs = connection.execute(text("select rejected, chosen, because from preference")).all()
    assert [tuple(pair) for pair in pairs] == [("hi", "Paris, on the Seine.", "corrected")]


async def test_feedback_that_overtakes_its_turn_waits_for_it(desk):
    await desk.post({"turn_id": turn_id(7).hex, "rating": 1})
    desk.work()
    assert [row.turn_id for row in desk.rows(feedback)] == [None]
    turn = desk.turn(7)
    desk.work()
    assert desk.score(turn) == [(1.0, "feedback")]


async def test_another_tenants_turn_is_not_reached(desk):
    with desk.db.begin() as connection:
        turn = add_turn(connection, 0, Stage.AWAITING_NEXT, tenant="other")
    await desk.post({"turn_id": turn.hex, "rating": -1})
    desk.work()
    assert desk.score(turn) == []


async def test_feedback_is_on_disk_before_it_is_acknowledged_and_needs_no_postgres(desk):
    reply = await desk.post({"turn_id": turn_id(0).hex, "rating": 1})
    assert reply.status_code == 202
    folder = StatePaths.for_config(desk.config).spool
    assert reply.json()["id"].encode() in b"".join(path.read_bytes() for path in folder.glob("*.seg"))


async def test_a_full_spool_says_that_nothing_was_recorded(desk, monkeypatch):
    monkeypatch.setattr(desk.app._spool, "feedback", lambda record: False)
    reply = await desk.post({"turn_id": turn_id(0).hex, "rating": 1})
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "feedback_not_recorded")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"rating": 1}, "name a turn"),
        ({"turn_id": turn_id(0).hex}, "say something"),
        ({"turn_id": "chatcmpl-abc", "rating": 1}, "x-turn-id"),
        ({"turn_id": turn_id(0).hex, "rating": 2}, "less than or equal to 1"),
        ({"turn_id": turn_id(0).hex, "score": "much"}, "valid number"),
        ({"turn_id": turn_id(0).hex, "rating": 1, "stars": 5}, "stars"),
        ({"turn_id": turn_id(0).hex, "outcome": {"detail": "x"}}, "outcome.success"),
        ([1], ""),
    ],
)
async def test_what_cannot_be_understood_is_refused_with_the_field(desk, body, words):
    reply = await desk.post(body)
    assert reply.status_code == 400
    assert words in reply.json()["error"]["message"]
    assert reply.json()["error"]["type"] == "invalid_request_error"


async def test_text_that_postgres_cannot_hold_is_mended_and_blocks_nothing(desk):
    turn = desk.turn()
    await desk.post({"turn_id": turn.hex, "comment": "a\0b", "outcome": {"success": True, "log": "\0"}})
    desk.work()
    assert desk.rows(feedback)[0].comment == "a\ufffdb"
    assert desk.score(turn) == [(1.0, "feedback")]


async def test_a_scorer_that_holds_the_turn_ends_first(desk):
    turn = desk.turn(0, Stage.SCORABLE)
    with desk.db.begin() as connection:
        claim = states.claim_scorable(connection, "another", 60)
    await desk.post({"turn_id": turn.hex, "rating": 1})
    desk.drainer.drain_once(desk.db)
    desk.scorer._evidence.apply()
    assert desk.score(turn) == []
    with desk.db.begin() as connection:
        states.finish(connection, claim, Stage.DROPPED, "no_quorum")
    desk.scorer._evidence.apply()
    assert (desk.state(turn), desk.score(turn)) == (("scored", None), [(1.0, "feedback")])


async def test_an_answer_that_was_made_again_is_evidence_against_it(desk):
    rejected = desk.turn(0, Stage.DROPPED, "no_next_state", session_id="s", prompt_hash=b"p")
    chosen = desk.turn(1, Stage.SCORED, session_id="s", prompt_hash=b"p", response_text="better")
    desk.turn(2, session_id="s", parent_id=chosen)
    alone = desk.turn(3, Stage.DROPPED, "no_next_state", prompt_hash=b"q")
    assert apply_siblings(desk.db, EPOCH) == 1
    assert desk.score(rejected) == [(-1.0, "regenerated")]
    assert desk.state(rejected) == ("scored", None)
    assert desk.state(alone) == ("dropped", "no_next_state")
    with desk.db.connect() as connection:
        pairs = connection.execute(
            text("select rejected_turn_id, chosen_turn_id, because from preference")
        ).all()
    assert [tuple(pair) for pair in pairs] == [(rejected, chosen, "regenerated")]


async def test_two_answers_that_read_the_same_are_no_pair(desk):
    alike = {"session_id": "s", "prompt_hash": b"p", "history_hash": b"h"}
    desk.turn(0, Stage.DROPPED, "no_next_state", **alike)
    desk.turn(2, session_id="s", parent_id=desk.turn(1, Stage.SCORED, **alike))
    assert apply_siblings(desk.db, EPOCH) == 0
    with desk.db.connect() as connection:
        assert connection.scalar(text("select count(*) from preference")) == 0
