"""What clients were promised, and what became of it: the accounting of the fault bench. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bench.faulting.engine import answer_to


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that its client gave up; times in seconds of one clock."""

    id: str
    port: int  # the client's own, which tells the connection
    began: float
    ended: float
    said: str


@dataclass(slots=True)
class Killed:
    """A kill that clients may feel: the connections of one worker, or (ports None) everybody's."""

    at: float
    ports: frozenset[int] | None
    over: float  # until new connections are served again

    def explains(self, failure: Failure) -> bool:
        overlaps = failure.began <= self.over and failure.ended >= self.at
        return overlaps and (self.ports is None or failure.port in self.ports)


@dataclass(frozen=True, slots=True)
class Row:
    """A turn as Postgres has it."""

    asked: str  # the id in the last user message
    turn_id: str
    parent_id: str | None
    status: str
    text: str | None


@dataclass(slots=True)
class Books:
    """`acknowledged`: id of a request whose client has its last byte → the one that it went on from."""

    acknowledged: dict[str, str | None] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    kills: list[Killed] = field(default_factory=list)

    def unexplained(self) -> list[Failure]:
        """Failures of clients whose own worker was not killed."""
        return [
            failure for failure in self.failures if not any(kill.explains(failure) for kill in self.kills)
        ]


@dataclass(frozen=True, slots=True)
class Account:
    recorded: int
    lost: tuple[str, ...]
    duplicated: tuple[str, ...]
    damaged: tuple[str, ...]  # recorded with another status or text than the client got
    misplaced: tuple[str, ...]  # recorded under another parent


def account(acknowledged: Mapping[str, str | None], rows: Iterable[Row]) -> Account:
    """Compares what was acknowledged with what is recorded."""
    found: dict[str, Row] = {}
    times: Counter[str] = Counter()
    for row in rows:
        found[row.asked] = row
        times[row.asked] += 1
    there = {asked: found[asked] for asked in acknowledged if asked in found}
    turn_ids = {asked: row.turn_id for asked, row in found.items()}
    return Account(
        recorded=len(there),
        lost=tuple(asked for asked in acknowledged if asked not in found),
        duplicated=tuple(asked for asked, count in times.items() if count > 1),
        damaged=tuple(
            asked for asked, row in there.items() if row.status != "ok" or row.text != answer_to(asked)
        ),
        misplaced=tuple(
            asked for asked, row in there.items() if row.parent_id != turn_ids.get(acknowledged[asked] or "")
        ),
    )
