"""Whatever else restarts, pauses or goes away."""

import json
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from dukou.settings.model import Config
from gateway.reconcile.postgres import ReconcilerStore
from gateway.reconcile.reconciler import Environment, Reconciler
from gateway.reconcile.sglang import Control
from gateway.routes import load
from tests.fakes.sglang import FakeSGLang
from tests.fakes.world import World


def test_a_restarted_engine_is_brought_back_to_the_live_version(world: World, fake: FakeSGLang) -> None:
    """W11."""
    world.make(1)
    world.live(1)
    world.tick()
    fake.die()
    (route,) = world.tick()
    assert (route["state"], route["reason"]) == ("dead", "nobody answers at this address")
    fake.restart()
    fake.loading = True
    (route,) = world.tick()
    assert route["state"] == "starting"
    fake.loading = False
    (route,) = world.tick()
    assert (route["state"], route["version_low"], fake.label) == ("ready", 1, "1")


def test_the_workers_are_told_what_an_engine_takes_for_left_out_fields(
    world: World, fake: FakeSGLang
) -> None:
    """K15."""
    qwen = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
    (Path(fake.base) / "generation_config.json").write_text(json.dumps(qwen | {"do_sample": True}))
    (route,) = world.tick()
    assert (route["state"], route["sampling_defaults"]) == ("ready", qwen)
    folder = world.make(1)
    (folder / "generation_config.json").write_text('{"temperature": 0.2}')
    world.live(1)
    (route,) = world.tick()
    assert (route["version_low"], route["sampling_defaults"]) == (1, qwen)
    fake.die()
    (route,) = world.tick()
    assert (route["state"], route["sampling_defaults"]) == ("dead", None)
    fake.sampling_defaults = "openai"
    fake.restart()
    (route,) = world.tick()
    assert (route["state"], route["sampling_defaults"], route["reason"]) == ("ready", {}, None)


def test_of_an_engine_whose_model_is_not_seen_the_workers_are_told_why_it_is_unknown(
    world: World, fake: FakeSGLang
) -> None:
    fake.base = "Qwen/Qwen3-8B"
    (route,) = world.tick()
    assert (route["state"], route["sampling_defaults"]) == ("ready", None)
    assert "is not known: its model 'Qwen/Qwen3-8B' is no absolute path" in route["reason"]


def test_a_reconciler_that_follows_another_one_sees_the_same(world: World, fake: FakeSGLang) -> None:
    (Path(fake.base) / "generation_config.json").write_text('{"temperature": 0.6}')
    world.tick()
    other = World(world.db, world.folder, [fake], owner="there", joins=world)
    try:
        (route,) = other.tick(0.0)
        assert (route["state"], route["sampling_defaults"]) == ("ready", {"temperature": 0.6})
    finally:
        other.close()


def test_a_pause_that_a_killed_reconciler_left_behind_is_ended(world: World, fake: FakeSGLang) -> None:
    world.tick()
    world.make(1)
    world.live(1)
    fake.replies["/continue_generation"] = [(500, {"message": "lost"})] * 20
    world.tick()
    assert fake.paused
    fake.replies.clear()
    world.restart()
    (route,) = world.tick()
    assert not fake.paused
    assert (route["state"], route["version_low"]) == ("ready", 1)


def test_a_pause_of_somebody_elses_is_left_alone(world: World, fake: FakeSGLang) -> None:
    world.tick()
    fake.paused = True
    (route,) = world.tick()
    assert (route["state"], fake.paused) == ("paused", True)


def test_a_restarted_reconciler_disturbs_nothing(world: World, fake: FakeSGLang) -> None:
    world.make(1)
    world.live(1)
    world.tick()
    before = len(fake.asked())
    world.restart()
    (route,) = world.tick()
    assert (route["state"], route["version_low"]) == ("ready", 1)
    assert len(fake.asked()) == before


def test_without_postgres_the_engine_is_kept_and_the_routes_stay_true(world: World, fake: FakeSGLang) -> None:
    world.connected = False
    (route,) = world.tick()
    assert (route["state"], route["version_low"]) == ("ready", 0)
    fake.die()
    (route,) = world.tick()
    assert route["state"] == "dead"


def test_an_engine_that_restarts_while_postgres_is_away_is_still_brought_back(
    world: World, fake: FakeSGLang, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.make(1)
    world.live(1)
    world.tick()
    written = len(world.published())
    fake.restart()
    with monkeypatch.context() as patch:
        patch.setattr(world.db, "begin", _away)
        (route,) = world.tick()
        assert (route["state"], route["version_low"], fake.label) == ("ready", 1, "1")
    world.tick()
    assert len(world.published()) == written + 1  # it was written when Postgres came back


def says_a_vocabulary(world: World, size: int) -> None:
    config = world.folder / "base" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"vocab_size": size}))


def test_the_workers_are_told_how_many_ids_an_engine_knows_also_while_it_is_dead(
    world: World, fake: FakeSGLang
) -> None:
    (unknown,) = world.tick()
    says_a_vocabulary(world, 4711)
    (known,) = world.tick()
    fake.die()
    (dead,) = world.tick()
    assert (unknown["vocab_size"], known["vocab_size"]) == (None, 4711)
    assert (dead["state"], dead["vocab_size"]) == ("dead", 4711)


def test_the_base_models_vocabulary_counts_where_the_engines_folder_is_elsewhere(
    world: World, fake: FakeSGLang
) -> None:
    says_a_vocabulary(world, 4711)
    fake.weights = "some/model-at-a-hub"
    (route,) = world.tick()
    assert route["vocab_size"] == 4711


def test_an_engine_of_another_reconciler_is_followed_and_not_touched(
    db: Engine, tmp_path: Path, fake: FakeSGLang, world: World
) -> None:
    world.make(1)
    world.live(1)
    world.tick()
    before = len(fake.asked())
    says_a_vocabulary(world, 4711)
    other = ReconcilerStore(lambda: db, "default", "elsewhere", world.clock)
    config = Config.model_validate({"engine": {"urls": [fake.url]}})
    with Control(fake.url) as control:
        environment = Environment(world.clock)
        Reconciler(config, other, [control], tmp_path / "other.json", environment=environment).tick()
    (route,) = load((tmp_path / "other.json").read_bytes()).engines
    assert (route.state, route.version_low, route.version_high) == ("ready", 1, 1)
    assert route.facts.vocab_size == 4711
    assert len(fake.asked()) == before


def test_another_openai_compatible_server_is_used_as_it_is(world: World, fake: FakeSGLang) -> None:
    fake.plain = True
    world.make(1)
    world.live(1)
    (route,) = world.tick()
    assert (route["state"], route["version_low"], route["dialect"]) == ("ready", None, "plain")


def _away() -> None:
    raise OperationalError("connect", {}, Exception("connection refused"))
