"""Kill -9 anywhere in a publish, of real processes beside a real engine: it comes to one live version by
itself, and at no time serves one that the table does not know."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from bench.faulting.procfs import children_of
from bench.publishing.plant import Plant
from bench.publishing.plants import full
from dukou.local.engine.__main__ import say
from dukou.local.engine.start import launch, start, stop
from dukou.settings.model import Config
from dukou.settings.paths import StatePaths
from dukou.store import policies, publishing, versions
from dukou.store.versions import NewVersion
from gateway.reconcile import routes_file
from gateway.reconcile.decide import Route
from gateway.reconcile.postgres import ReconcilerStore
from gateway.reconcile.reconciler import Reconciler
from gateway.reconcile.sglang import Control, Health
from tests.acceptance import mortal
from tests.acceptance.conftest import RealEngine, configured
from tests.fakes.training import fill, make_policy, rows

LEAST_KILLS = 20


@pytest.fixture
def config(real_engine: RealEngine, tmp_path: Path) -> Config:
    return Config.model_validate(
        {
            "state_dir": tmp_path / "state",
            "engine": real_engine.config.engine.model_dump(),
            "batch": {"rollout_batch_size": 4, "min_size": 2},
            "trainer": {"device": "cpu", "lora_rank": 4, "keep_checkpoints": 2},
            "guard": {"max_kl": 0},
            "watch": {"turns": 0},
        }
    )


@pytest.fixture
def control(real_engine: RealEngine) -> Iterator[Control]:
    with Control(real_engine.url) as made:
        yield made
        made.continue_()
        made.update_weights_from_disk(str(real_engine.model), "0", flush_cache=True)


def reconciler(config: Config, db: Engine, control: Control) -> Reconciler:
    store = ReconcilerStore(lambda: db, config.policy.name, "test")
    return Reconciler(config, store, [control], StatePaths.for_config(config).routes_file)


def only(routes: dict[str, Route]) -> tuple[str, int | None, int | None]:
    (route,) = routes.values()
    return route.state, route.version_low, route.version_high


def label(control: Control) -> int:
    info = control.model_info()
    assert info is not None
    return int(str(info.weight_version))


def live(db: Engine) -> int:
    [(version,)] = rows(db, "select live_version from policies")
    return int(version)


@pytest.mark.slow
def test_a_learner_killed_at_every_point_of_a_publish_leaves_one_live_version_that_the_table_knows(
    config: Config, db: Engine, database_url: str, control: Control
) -> None:
    policy, follower = make_policy(db, config), reconciler(config, db, control)
    turns = iter(range(0, 10_000, 4))

    def four_turns() -> None:
        first, version = next(turns), live(db)
        of_live = {"policy_version_min": version, "policy_version_max": version}
        fill(db, policy, range(first, first + 4), **of_live)

    for _ in range(2):  # the first makes the folders, too
        four_turns()
        points = mortal.run(mortal.learn, config, database_url)
    assert points is not None
    assert len(points) >= LEAST_KILLS
    for point in range(1, len(points) + 1):
        four_turns()
        assert mortal.run(mortal.learn, config, database_url, die_before=point) is None
        assert only(follower.tick()) == ("ready", live(db), live(db))
        assert label(control) == live(db)
        mortal.run(mortal.learn, config, database_url)
        assert only(follower.tick()) == ("ready", live(db), live(db))
        assert label(control) == live(db)
    trained = len(points) + 2
    assert rows(db, "select count(*), count(distinct batch_id), max(number) from steps") == [(trained,) * 3]
    assert rows(db, "select stage, count(*) from turn_states group by stage") == [("trained", 4 * trained)]
    assert rows(db, "select count(*) from versions where status = 'live'") == [(1,)]
    assert rows(db, "select max(version) from versions") == [(live(db),)]


class Publisher:
    """Makes versions live that plainly differ, as a learner leaves them."""

    def __init__(self, config: Config, db: Engine, place: Path) -> None:
        base = Path(config.engine.model_path)
        self.plants: list[Plant] = [full(base, place / f"x{factor}", factor) for factor in (1.5, 0.6)]
        self._db, self._place = db, place
        with db.begin() as connection:
            self.policy = policies.default(connection, config).id

    def publish(self) -> int:
        with self._db.begin() as connection:
            number = versions.next_version(connection, self.policy)
            plant, path = self.plants[number % 2], self._place / str(number)
            plant.copy_to(path)
            new = NewVersion(self.policy, number, 0, None, str(path), "full", plant.probe)
            versions.insert(connection, new)
            publishing.publish(connection, self.policy, number)
        return number


@pytest.mark.slow
def test_a_reconciler_killed_before_and_after_every_call_is_mended_by_its_successor(
    config: Config, db: Engine, database_url: str, control: Control, checkpoints: Path
) -> None:
    publisher, routes = Publisher(config, db, checkpoints), StatePaths.for_config(config).routes_file
    for _ in range(2):  # the base model, and the first version, before which checksums are tried
        mortal.run(mortal.reconcile, config, database_url)
        publisher.publish()
    points = mortal.run(mortal.reconcile, config, database_url)
    assert points is not None
    assert len(points) >= LEAST_KILLS
    for point in range(1, len(points) + 1):
        before, version = live(db), publisher.publish()
        assert mortal.run(mortal.reconcile, config, database_url, die_before=point) is None
        assert label(control) in (before, version)
        mortal.run(mortal.reconcile, config, database_url)
        memory = routes_file.remember(routes)[control.url]
        assert (memory.span, memory.updating) == ((version, version), False)
        assert (control.health(), label(control)) == (Health.READY, version)
    assert rows(db, "select count(*) from versions where status = 'refused'") == [(0,)]


class Fatal(Control):
    """Kills the engine before or after one call of it."""

    moment: tuple[str, str] | None = None
    engine = 0

    def _send(self, method: str, path: str, body: Any, timeout: Any) -> Any:
        if self.moment == ("before", path):
            self.kill()
        answer = super()._send(method, path, body, timeout)
        if self.moment == ("after", path):
            self.kill()
        return answer

    def kill(self) -> None:
        """All of the engine's processes at once, the one that was started last: it reaps the others."""
        self.moment = None
        family = [self.engine]
        for pid in family:
            family += children_of(pid)
        for pid in reversed(family):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_an_engine_killed_in_a_publish_serves_nothing_but_the_live_version_when_it_is_back(
    installed: StatePaths, db: Engine, tmp_path: Path, checkpoints: Path
) -> None:
    config = configured(installed, tmp_path)
    process = start(config, say)
    try:
        with Fatal(config.engine.urls[0]) as control:
            publisher, follower = Publisher(config, db, checkpoints), reconciler(config, db, control)
            assert only(follower.tick()) == ("ready", 0, 0)
            for moment in (("before", "/update_weights_from_disk"), ("after", "/update_weights_from_disk")):
                control.moment, control.engine = moment, process.pid
                version = publisher.publish()
                assert only(follower.tick())[0] != "ready"
                process.wait(20)
                process = launch(config)
                while only(routes := follower.tick())[0] != "ready":
                    assert process.poll() is None, routes
                    time.sleep(0.3)
                assert only(routes) == ("ready", version, version)
                assert label(control) == version
    finally:
        stop(process)
