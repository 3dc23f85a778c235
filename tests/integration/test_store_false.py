"""`privacy.store_false`, from the client's request to the row: a worker, its spool and a drainer."""

from pathlib import Path

import pytest
from sqlalchemy import text

from dukou.settings.serving import Privacy
from gateway.drain import aside, write
from tests.fakes.ferry import Ferry
from tests.fakes.gateway import ASK, CHAT, config_for, running
from tests.fakes.spooled import request_body, request_meta, turn_id, user
from tests.fakes.upstream import DONE, HANG, FakeUpstream, Send, answer, chunk, event, stream_head

pytestmark = pytest.mark.anyio

SECRET = "a sentence that nobody may keep"
PRIVATE = {"model": "m", "messages": [{"role": "user", "content": SECRET}], "store": False}
WHOLE = [
    Send(answer(200, {"choices": [{"index": 0, "message": {"content": SECRET}, "finish_reason": "stop"}]}))
]
STREAMED = [Send(stream_head() + event(chunk({"content": SECRET})) + event(chunk({}, "stop")) + DONE)]
both = pytest.mark.parametrize(
    ("stream", "says"), [(False, WHOLE), (True, STREAMED)], ids=["whole", "stream"]
)


def settings(state: Path, setting: str, *urls: str):
    return config_for(state, *urls).model_copy(update={"privacy": Privacy(store_false=setting)})


def ferry_for(tmp_path, db, setting):
    ferry = Ferry(tmp_path, db)
    ferry.config = ferry.config.model_copy(update={"privacy": Privacy(store_false=setting)})
    ferry.drainer = ferry.new_drainer()
    return ferry


async def over(gw):
    """Waits until no turn runs, and gives the counts of those that were not recorded."""
    while gw.server.config.app.health.turns:
        await gw.client.get("/healthz")
    gw.server.config.app.health.metrics.save(0)
    shown = (await gw.client.get("/metrics")).text
    return [line.partition(",")[2] for line in shown.splitlines() if "unrecorded_total{" in line]


def keepers(folder: Path) -> list[str]:
    """The files that hold the sentence."""
    return [
        path.name for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()
    ]


@both
@pytest.mark.parametrize("setting", ["ignore", "no_train"])
async def test_a_turn_that_may_be_kept_is_and_its_answer_is_trained_by_the_setting(
    tmp_path, db, setting, stream, says
):
    async with (
        FakeUpstream(says) as engine,
        running(settings(tmp_path, setting, engine.url)) as gw,
    ):
        await gw.client.post(CHAT, json={**PRIVATE, "stream": stream})
        await gw.turn()
        assert await over(gw) == []
    ferry = ferry_for(tmp_path, db, setting)
    ferry.give_up_waiting()
    [row] = ferry.rows()
    assert row.response_text == SECRET
    # The fake engine gives no ids: without `store: false`, that is what stands against training.
    assert row.untrainable_reason == ("store_false" if setting == "no_train" else "no_ids")


@both
async def test_of_a_turn_that_may_not_be_kept_only_the_count_is(tmp_path, db, stream, says):
    async with (
        FakeUpstream([*says, *WHOLE]) as engine,
        running(settings(tmp_path, "no_record", engine.url)) as gw,
    ):
        got = await gw.client.post(CHAT, json={**PRIVATE, "stream": stream})
        assert SECRET in got.text
        assert got.headers["x-turn-id"]
        assert await over(gw) == ['reason="store_false"} 1']
        assert gw.turns() == []
        assert keepers(tmp_path) == []
        recorded = await gw.client.post(CHAT, json=ASK)
        await gw.turn()
    ferry = ferry_for(tmp_path, db, "no_record")
    ferry.give_up_waiting()
    assert [row.id.hex for row in ferry.rows()] == [recorded.headers["x-turn-id"]]


@pytest.mark.parametrize(
    ("path", "ask", "status"),
    [
        ("/v1/embeddings", {"model": "m", "input": SECRET, "store": False}, 200),
        ("/sessions/s/v1/chat/completions", {**PRIVATE, "model": "unknown"}, 404),
    ],
    ids=["another endpoint", "refused"],
)
async def test_neither_are_other_endpoints_and_refusals(tmp_path, path, ask, status):
    async with (
        FakeUpstream(WHOLE, paths={"/v1/embeddings": WHOLE}) as engine,
        running(settings(tmp_path, "no_record", engine.url)) as gw,
    ):
        assert (await gw.client.post(path, json=ask)).status_code == status
        assert await over(gw) == ['reason="store_false"} 1']
        assert gw.turns() == []
        assert keepers(tmp_path) == []


async def test_another_engine_is_asked_for_a_turn_that_may_not_be_kept(tmp_path):
    async with FakeUpstream(WHOLE) as engine:
        dead = "http://127.0.0.1:9"
        async with running(settings(tmp_path, "no_record", dead, engine.url)) as gw:
            for _ in range(2):  # whichever engine is tried first
                assert SECRET in (await gw.client.post(CHAT, json=PRIVATE)).text
            assert await over(gw) == ['reason="store_false"} 2']
            assert gw.turns() == []


async def test_an_engine_is_stopped_when_the_client_of_such_a_turn_leaves(tmp_path):
    begun = Send(stream_head() + event(chunk({"content": SECRET})))
    async with (
        FakeUpstream([begun, HANG]) as engine,
        running(settings(tmp_path, "no_record", engine.url)) as gw,
    ):
        async with gw.client.stream("POST", CHAT, json={**PRIVATE, "stream": True}) as response:
            async for _ in response.aiter_raw():
                break
        await engine.asked()[0].peer_closed.wait()
        assert engine.asked("/abort_request")[0].json == {"rid": response.headers["x-turn-id"]}
        assert await over(gw) == ['reason="store_false"} 1']
        assert gw.turns() == []
        assert keepers(tmp_path) == []


def test_the_drainer_keeps_nothing_of_what_was_spooled_under_another_setting(tmp_path, db):
    ferry = ferry_for(tmp_path, db, "no_record")
    before = ferry.say([user("1")])
    hidden = turn_id(ferry.clock + 1)
    ferry.worker.request(request_meta(hidden, ferry.clock + 1), request_body([user(SECRET)], store=False))
    ferry.worker.answer(hidden, ferry.clock + 1.5, SECRET)
    ferry.clock += 1
    after = ferry.say([user("2")])
    assert ferry.drain() == 3
    assert [row.id for row in ferry.rows()] == [before, after]
    assert ferry.drainer.report(ferry.clock).unrecorded == 1
    with db.connect() as connection:
        kept = connection.execute(text("select body from contents")).scalars()
        assert not [body for body in kept if SECRET.encode() in bytes(body)]
    ferry.drainer = ferry.new_drainer()  # it is settled: a restart does not count it again
    ferry.drain()
    assert ferry.drainer.report(ferry.clock).unrecorded == 0


@pytest.mark.parametrize(
    ("setting", "reasons"), [("ignore", [None]), ("no_train", ["store_false"]), ("no_record", [])]
)
def test_what_was_set_aside_is_drained_again_by_the_setting(tmp_path, db, monkeypatch, setting, reasons):
    ferry = ferry_for(tmp_path, db, "no_train")
    turn = turn_id(ferry.clock + 1)
    ferry.worker.request(request_meta(turn, ferry.clock + 1), request_body([user(SECRET)], store=False))
    ferry.worker.answer(turn, ferry.clock + 1.5, "X")
    ferry.clock += 2

    def failing(request, known):
        raise AttributeError("no such thing")

    with monkeypatch.context() as broken:
        broken.setattr(write.lineage, "place", failing)
        ferry.drain()
    ferry.config = ferry.config.model_copy(update={"privacy": Privacy(store_false=setting)})
    assert [result.error for result in aside.drain_again(db, ferry.config)] == [None]
    assert [row.untrainable_reason for row in ferry.rows()] == reasons
    with db.connect() as connection:
        assert connection.scalar(text("select count(*) from set_aside")) == 0
