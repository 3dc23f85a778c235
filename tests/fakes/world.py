"""A policy in a real Postgres, fake engines, and a reconciler that ticks when it is told to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import Engine, insert, select, update
from sqlalchemy.exc import OperationalError

from dukou.settings.model import Config
from dukou.store import publishing, versions
from dukou.store.states import Stage
from dukou.store.tables import policies, publications, sessions
from dukou.store.versions import Form, NewVersion, Probe, ProbePrompt
from gateway.reconcile.adapters import Spawn
from gateway.reconcile.postgres import ReconcilerStore
from gateway.reconcile.reconciler import Environment, Reconciler
from gateway.reconcile.sglang import Control
from tests.fakes.models import write_adapter, write_model
from tests.fakes.sglang import FakeSGLang, logprob
from tests.fakes.turns import add_turn

IDS = [1, 5, 9, 2]
PROBE = Probe((ProbePrompt(tuple(IDS), tuple(logprob(i) for i in IDS[1:])),))
SWAP = ["/pause_generation", "/update_weights_from_disk", "/continue_generation"]


def at_once(work: Callable[[], None]) -> Callable[[], bool]:
    """What a reconciler does in a thread, done before it goes on."""
    work()
    return lambda: False


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class World:
    """One policy with version 0, some engines, and a reconciler that ticks when told."""

    db: Engine
    folder: Path
    fakes: Sequence[FakeSGLang]
    clock: Clock = field(default_factory=Clock)
    connected: bool = True
    owner: str = "here"
    pin_seconds: float = 0.0
    spawn: Spawn = at_once
    joins: "World | None" = None  # another world's policy, for a second reconciler
    _turns: int = 0
    _controls: list[Control] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.joins is not None:
            self.policy: int = self.joins.policy
        else:
            self._begin()
        self.restart()

    def _begin(self) -> None:
        base = write_model(self.folder / "base")
        for fake in self.fakes:
            fake.base = fake.weights = str(base)
        with self.db.begin() as connection:
            row = insert(policies).values(name="default", scope="global", base_model=str(base))
            self.policy = connection.execute(row.returning(policies.c.id)).scalar_one()
            versions.insert(connection, NewVersion(self.policy, 0, None, None, str(base), "full", None))

    def restart(self) -> None:
        """A new reconciler process, over the same routes file."""
        self.close()
        self._controls = [Control(fake.url) for fake in self.fakes]
        store = ReconcilerStore(
            self._connect, "default", self.owner, self.clock, pin_seconds=self.pin_seconds
        )
        config = Config.model_validate({"engine": {"urls": [fake.url for fake in self.fakes]}})
        self.reconciler = Reconciler(
            config,
            store,
            self._controls,
            self.routes_file,
            environment=Environment(self.clock, lambda _: None, self.spawn),
        )

    def close(self) -> None:
        for control in self._controls:
            control.close()

    @property
    def routes_file(self) -> Path:
        return self.folder / self.owner / "routes.json"

    def tick(self, seconds: float = 3.0) -> list[dict[str, Any]]:
        """Lets time pass and returns what the workers would read."""
        self.clock.now += seconds
        self.reconciler.tick()
        found: list[dict[str, Any]] = orjson.loads(self.routes_file.read_bytes())["engines"]
        return found

    def make(
        self,
        version: int,
        form: Form = "full",
        parent: int | None = None,
        probe: Probe | None = PROBE,
        folder: Path | None = None,
    ) -> Path:
        """A version on disk and in its table."""
        place = self.folder / "versions" / str(version)
        if folder is not None:
            made = folder
        else:
            made = write_adapter(place) if form == "adapter" else write_model(place, fill=version)
        above = version - 1 if parent is None else parent
        with self.db.begin() as connection:
            new = NewVersion(self.policy, version, above, None, str(made), form, probe)
            versions.insert(connection, new)
        return made

    def live(self, version: int) -> None:
        with self.db.begin() as connection:
            versions.set_live(connection, self.policy, version)

    def try_out(self, version: int, share: float) -> None:
        with self.db.begin() as connection:
            publishing.try_out(connection, self.policy, version, share)

    def session(self, name: str, began_with: int, age: float = 0.0, source: str = "x-session-id") -> None:
        """A session whose first turn a version answered, so many seconds ago."""
        began = datetime.now(UTC) - timedelta(seconds=age)
        with self.db.begin() as connection:
            row = {"tenant": "default", "id": name, "source": source, "created_at": began}
            connection.execute(insert(sessions).values(**row, last_turn_at=began))
            more = {"tenant": "default", "session_id": name, "started_at": began}
            versions_of = {"policy_version_min": began_with, "policy_version_max": began_with}
            self._turns += 1
            add_turn(
                connection, self._turns, Stage.AWAITING_NEXT, policy_id=self.policy, **more, **versions_of
            )

    def age(self, name: str, seconds: float) -> None:
        began = datetime.now(UTC) - timedelta(seconds=seconds)
        with self.db.begin() as connection:
            connection.execute(update(sessions).where(sessions.c.id == name).values(created_at=began))

    def routes(self) -> dict[str, Any]:
        """The routes file, whole."""
        found: dict[str, Any] = orjson.loads(self.routes_file.read_bytes())
        return found

    def status(self, version: int) -> tuple[str, str | None]:
        with self.db.begin() as connection:
            row = versions.get(connection, self.policy, version)
        return row.status, row.reason

    def live_version(self) -> int:
        with self.db.begin() as connection:
            live = versions.live(connection, "default")
        assert live is not None
        return live.version

    def published(self) -> list[Any]:
        with self.db.begin() as connection:
            return list(connection.execute(select(publications).order_by(publications.c.id)).all())

    def _connect(self) -> Engine:
        if not self.connected:
            raise OperationalError("connect", {}, Exception("connection refused"))
        return self.db
