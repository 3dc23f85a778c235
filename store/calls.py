"""The ledger of calls to outside models: every attempt is a row, also those that failed or were retried."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection, func, select
from sqlalchemy.dialects.postgresql import insert

from store import spending
from store.tables import calls

_OF_CHANNEL = (
    "timeout",
    "unreachable",
    "bad_reply",
    "http_401",
    "http_402",
    "http_403",
    "http_404",
    "http_408",
    "http_429",
)


@dataclass(frozen=True, slots=True)
class Call:
    """One request that left this machine. Unknown tokens and prices are None, never 0."""

    purpose: str  # judge | teacher
    model: str
    outcome: str  # ok, or why it gave no verdict: a fault, empty, truncated, unparsable
    seconds: float
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: float | None = None

    @property
    def came_back(self) -> bool:
        """The model answered, whatever it said: the call is on somebody's bill."""
        return not is_fault(self.outcome)


@dataclass(frozen=True, slots=True)
class OutcomeCount:
    """How the calls of one purpose ended lately."""

    purpose: str
    outcome: str
    calls: int


def is_fault(outcome: str) -> bool:
    """Whether the call failed on the way, or was refused: nothing was said."""
    return outcome in ("timeout", "unreachable", "bad_reply", "context_overflow") or outcome.startswith(
        "http_"
    )


def of_channel(outcome: str) -> bool:
    """Whether it failed for a reason that has nothing to do with what was asked."""
    return outcome in _OF_CHANNEL or outcome.startswith("http_5")


def record(connection: Connection, call: Call, turn_id: UUID | None) -> int:
    """Writes the call and returns its id. The caller adds calls up (`add_up`) in the same transaction."""
    statement = (
        insert(calls)
        .values(
            purpose=call.purpose,
            model=call.model,
            turn_id=turn_id,
            outcome=call.outcome,
            seconds=call.seconds,
            prompt_tokens=call.prompt_tokens,
            completion_tokens=call.completion_tokens,
            cost_usd=call.cost_usd,
        )
        .returning(calls.c.id)
    )
    return int(connection.execute(statement).scalar_one())


def add_up(connection: Connection, made: Sequence[Call]) -> None:
    """Adds recorded calls to the sums, last in their transaction: all scorers add to one row, and each waits
    for the one before it to commit."""
    if made:
        spending.add(
            connection,
            calls=len(made),
            tokens=sum((call.prompt_tokens or 0) + (call.completion_tokens or 0) for call in made),
            cost_usd=sum(call.cost_usd or 0.0 for call in made),
            unpriced=sum(call.came_back and call.cost_usd is None for call in made),
        )


def lately(connection: Connection, hours: int = 24) -> list[OutcomeCount]:
    """How the calls of the last hours ended, most frequent first."""
    number = func.count().label("number")
    query = (
        select(calls.c.purpose, calls.c.outcome, number)
        .where(calls.c.created_at > func.now() - func.make_interval(0, 0, 0, 0, hours))
        .group_by(calls.c.purpose, calls.c.outcome)
        .order_by(number.desc(), calls.c.purpose, calls.c.outcome)
    )
    return [OutcomeCount(*row) for row in connection.execute(query)]
