"""The reconciler's database access, which goes on while Postgres is away.

Meanwhile the last version that was verified stays the target, and what should have been written waits. An
engine that restarts then is still brought back to that version, and users notice nothing.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import IntegrityError

from dukou.store import processes, publishing, versions
from dukou.store.postgres_errors import POSTGRES_ERRORS, line_of
from dukou.store.processes import Heartbeat
from dukou.store.publishing import Pointers, Publication
from dukou.store.versions import Version
from gateway.reconcile.adapter_plan import ExtraAdapters
from gateway.reconcile.decide import Route, Target, adapter_name

_log = logging.getLogger(__name__)
_RETRY_SECONDS = 2.0  # between attempts to reach Postgres
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LiveVersion:
    """The live version, and the base model that checkpoints are compared with."""

    version: Version
    base: Path
    target: Target
    extra: ExtraAdapters = field(default_factory=ExtraAdapters)
    versions: Mapping[int, Version] = field(default_factory=dict)  # those of `extra`, by number


class ReconcilerStore:
    """`owner` names this reconciler in the leases: the same one after a restart.

    `pin_seconds`: for how long a session stays on the version it began with.
    """

    def __init__(
        self,
        connect: Callable[[], Engine],
        policy: str,
        owner: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        pin_seconds: float = 0.0,
    ) -> None:
        self._connect = connect
        self._database: Engine | None = None
        self._policy = policy
        self._owner = owner
        self._clock = clock
        self._pin_seconds = pin_seconds
        self._good: LiveVersion | None = None
        self._pointers: Pointers | None = None  # as `live` read them last
        self._unwritten: deque[Callable[[Connection], object]] = deque()
        self._leases: set[str] = set()
        self._renew_at: dict[tuple[str, float], float] = {}  # by engine and length: not at every tick
        self._swap: int | None = None  # the token of the lease on swapping weights
        self._retry_at = 0.0
        self._reached = False
        self.away: str | None = None  # why Postgres cannot be reached; None: it can

    def live(self) -> LiveVersion | None:
        """What the live pointer shows; the last verified version while Postgres is away; None: not known."""
        found = self._try(self._read_live)
        return found if self.away is None else self._good

    def moved(self) -> bool:
        """Whether a pointer is another one than `live` read last. False while Postgres is away."""
        found = self._try(lambda connection: publishing.pointers_of(connection, self._policy))
        return self.away is None and found != self._pointers

    def verified(self, live: LiveVersion) -> None:
        """An engine serves this version and its probe agreed."""
        self._good = live

    def owns(self, url: str, seconds: float) -> bool:
        """Takes or renews the lease of an engine. While Postgres is away, what was held is held on; before it
        was ever reached nobody knows better, and without a live version nothing is done to an engine anyway.
        """
        if self._clock() < self._renew_at.get((url, seconds), 0.0):
            return True
        self._renew_at = {key: at for key, at in self._renew_at.items() if key[0] != url}
        name = f"reconciler:{url}"
        token = self._try(lambda connection: processes.acquire(connection, name, self._owner, seconds))
        if token is not None:
            self._leases.add(url)
            self._renew_at[url, seconds] = self._clock() + seconds / 3
        elif self.away is None:
            self._leases.discard(url)
        return url in self._leases or not self._reached

    def may_swap(self, seconds: float) -> bool:
        """Whether an engine may swap its weights now: one at a time, whichever reconciler it belongs to."""
        name = f"swap:{self._policy}"
        token = self._try(lambda connection: processes.acquire(connection, name, self._owner, seconds))
        self._swap = token or self._swap
        return token is not None or self.away is not None

    def swapped(self) -> None:
        """The next engine may."""
        token, self._swap = self._swap, None
        if token is not None:
            name = f"swap:{self._policy}"
            self._try(lambda connection: processes.release(connection, name, token))

    def close(self) -> None:
        if self._database is not None:
            self._database.dispose()

    def refuse(self, version: Version, reason: str) -> None:
        """Refuses a version and says aloud what is live instead."""

        def write(connection: Connection) -> None:
            now_live = versions.refuse(connection, version.policy_id, version.version, reason)
            _log.error("version %d is refused: %s; version %d is live", version.version, reason, now_live)

        self._write(write)

    def record(self, publication: Publication) -> None:
        self._write(lambda connection: publishing.insert(connection, publication))

    def see(self, url: str, route: Route) -> None:
        """Not kept while Postgres is away: it would be old news."""
        verified = route.version_low if route.version_low == route.version_high else None
        self._try(
            lambda connection: processes.record(
                connection,
                url,
                route.state,
                reason=route.reason,
                version=verified,
                dialect=route.dialect,
                beside=route.beside,
            )
        )

    def follow(self, url: str) -> Route | None:
        """What the reconciler that holds this engine's lease says of it; None: nothing yet."""
        return self._try(lambda connection: self._follow(connection, url))

    def beat(self, doing: str, waits_for: str | None) -> None:
        heartbeat = Heartbeat("reconciler", doing, waits_for)
        self._try(lambda connection: processes.beat(connection, heartbeat))

    def _read_live(self, connection: Connection) -> LiveVersion | None:
        self._pointers = publishing.pointers_of(connection, self._policy)
        version = versions.live(connection, self._policy)
        if version is None:
            return None
        base = Path(versions.get(connection, version.policy_id, 0).path)
        extra, rows = self._read_extra(connection, version)
        return LiveVersion(version, base, self._target(version), extra, rows)

    def _read_extra(self, connection: Connection, live: Version) -> tuple[ExtraAdapters, dict[int, Version]]:
        """The versions that some sessions get beside the live one; only adapters can."""
        trial = publishing.pointers(connection, live.policy_id).trial
        found = {}
        if self._pin_seconds and live.form == "adapter":
            found = publishing.begun_with(connection, live.policy_id, live.version, self._pin_seconds)
        asked = set(found.values()) | ({trial.version} if trial else set())
        rows = {number: versions.get(connection, live.policy_id, number) for number in asked}
        targets = {number: self._target(row) for number, row in rows.items()}
        pinned = {number: targets[number] for number in set(found.values())}
        extra = ExtraAdapters(
            targets[trial.version] if trial else None, trial.share if trial else 0.0, found, pinned
        )
        return extra, rows

    def _target(self, version: Version) -> Target:
        adapter = adapter_name(self._policy, version.version) if version.form == "adapter" else None
        return Target(version.version, version.form, version.path, adapter)

    def _follow(self, connection: Connection, url: str) -> Route | None:
        row = next((row for row in processes.get_all(connection) if row.url == url), None)
        live = versions.live(connection, self._policy)
        if row is None or live is None or row.version is None:
            return None if row is None else Route(row.state, row.reason, dialect=row.dialect)
        served = self._target(versions.get(connection, live.policy_id, row.version))
        beside = frozenset(row.beside)
        route = Route(row.state, row.reason, row.version, row.version, served.adapter, row.dialect, beside)
        # The other reconciler may already move it: whatever lies between the two may answer.
        low, high = sorted((row.version, live.version))
        return replace(route, version_low=low, version_high=high)

    def _write(self, write: Callable[[Connection], object]) -> None:
        self._unwritten.append(write)
        self._try(lambda _: None)

    def _try(self, ask: Callable[[Connection], T]) -> T | None:
        """Writes what waited, then asks; None while Postgres is away."""
        if self.away is not None and self._clock() < self._retry_at:
            return None
        try:
            self._database = self._database or self._connect()
            while self._unwritten:
                self._write_one(self._database)
            with self._database.begin() as connection:
                answer = ask(connection)
        except POSTGRES_ERRORS as error:
            self.away = line_of(error)
            self._retry_at = self._clock() + _RETRY_SECONDS
            return None
        self.away = None
        self._reached = True
        return answer

    def _write_one(self, database: Engine) -> None:
        try:
            with database.begin() as connection:
                self._unwritten[0](connection)
        except IntegrityError as error:  # its policy or version is gone: no later try can mend that
            _log.error("could not be written: %s", line_of(error))
        self._unwritten.popleft()
