"""A worker, a spool and a drainer on a test's own clock."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import Engine, select

from dukou.settings.model import Config
from dukou.settings.serving import Session
from dukou.store import contents
from dukou.store.tables import turn_states, turns
from gateway.drain.drainer import Drainer
from gateway.spool.reader import SpoolReader
from tests.fakes.spooled import Worker

START = 1_700_000_000.0  # seconds since 1970
_WHOLE = select(
    *(column for column in turns.c if column.name != "prompt_ids"),
    contents.messages(turns).label("messages"),
    contents.tools(turns).label("tools"),
    contents.prompt_ids(turns).label("prompt_ids"),
    contents.request_body(turns).label("request_body"),
)


class Ferry:
    """Time moves only by `clock`; `say` writes a whole turn into the spool, `drain` makes rows of it."""

    def __init__(self, folder: Path, database: Engine, **session: Any) -> None:
        self.folder = folder / "spool"
        self.database = database
        self.config = Config(state_dir=folder, session=Session(**session))
        self.clock = START
        self.workers = 0
        self.worker = self.new_worker()
        self.drainer = self.new_drainer()

    def new_worker(self) -> Worker:
        self.workers += 1
        return Worker(self.folder, started=self.workers)

    def new_drainer(self) -> Drainer:
        """As after a restart: it knows what is on disk."""
        return Drainer(self.config, SpoolReader(self.folder), lambda: self.clock)

    def say(self, messages: Sequence[Any], text: str | None = "answer", **more: Any) -> UUID:
        """A turn of half a second, a second after the last one."""
        self.clock += 1
        return UUID(self.worker.turn(self.clock, messages, text, **more))

    def drain(self) -> int:
        """Drains until nothing is left to be settled now."""
        total = 0
        while settled := self.drainer.drain_once(self.database):
            total += settled
        return total

    def give_up_waiting(self) -> int:
        """Drains so late that nobody waits for a parent any more."""
        settled = self.drain()
        self.clock += 3
        return settled + self.drain()

    def row(self, turn: UUID) -> Any:
        with self.database.connect() as connection:
            return connection.execute(_WHOLE.where(turns.c.id == turn)).one()

    def rows(self) -> list[Any]:
        with self.database.connect() as connection:
            return list(connection.execute(_WHOLE.order_by(turns.c.id)))

    def state(self, turn: UUID) -> tuple[str, str | None, UUID | None]:
        """Stage, reason and the turn that brought the next state."""
        columns = (turn_states.c.stage, turn_states.c.reason, turn_states.c.next_turn_id)
        with self.database.connect() as connection:
            stage, reason, following = connection.execute(
                select(*columns).where(turn_states.c.turn_id == turn)
            ).one()
        return stage, reason, following
