"""The ledger of calls to outside models: every attempt is a row, also those that failed or were retried.

Costs of outside models, as sums that are read before every turn; and the caps on them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from uuid import UUID

from sqlalchemy import Connection, func, select
from sqlalchemy.dialects.postgresql import insert

from dukou.store.tables import calls, spending


@dataclass(frozen=True, slots=True)
class Costs:
    """Sums over some days. `unpriced` calls came back and are missing in `cost_usd`."""

    calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    unpriced: int = 0


@dataclass(frozen=True, slots=True)
class Caps:
    """0 is no cap. A day is a day of UTC."""

    usd_per_day: float = 0.0
    usd_total: float = 0.0
    tokens_per_day: int = 0
    tokens_total: int = 0

    @property
    def any(self) -> bool:
        return bool(self.usd_per_day or self.usd_total or self.tokens_per_day or self.tokens_total)


def add(connection: Connection, *, calls: int, tokens: int, cost_usd: float, unpriced: int) -> None:
    """Adds to today's sums, in the transaction that writes the calls to the ledger."""
    columns = spending.c
    new = {"calls": calls, "tokens": tokens, "cost_usd": cost_usd, "unpriced": unpriced}
    statement = insert(spending).values(day=func.timezone("UTC", func.now()).cast(columns.day.type), **new)
    sums = {name: columns[name] + statement.excluded[name] for name in new}
    connection.execute(statement.on_conflict_do_update(index_elements=["day"], set_=sums))


def spent(connection: Connection, since: date | None = None) -> Costs:
    """The sums of the days from `since` on, or of all."""
    names = ("calls", "tokens", "cost_usd", "unpriced")
    query = select(*(func.coalesce(func.sum(spending.c[name]), 0) for name in names))
    if since is not None:
        query = query.where(spending.c.day >= since)
    calls, tokens, cost, unpriced = connection.execute(query).one()
    return Costs(int(calls), int(tokens), float(cost), int(unpriced))


def over(connection: Connection, caps: Caps, now: datetime) -> str | None:
    """The sentence that says which cap is reached; None where money is left."""
    if not caps.any:
        return None
    return reached(caps, spent(connection, now.astimezone(UTC).date()), spent(connection))


def reached(caps: Caps, today: Costs, ever: Costs) -> str | None:
    """Which cap has been reached, in a sentence; None where none has. Pure."""
    for name, cap, used, when in (
        ("usd_per_day", caps.usd_per_day, today.cost_usd, "it goes on at 00:00 UTC"),
        ("usd_total", caps.usd_total, ever.cost_usd, "raise it to go on"),
        ("tokens_per_day", caps.tokens_per_day, today.tokens, "it goes on at 00:00 UTC"),
        ("tokens_total", caps.tokens_total, ever.tokens, "raise it to go on"),
    ):
        if cap and used >= cap:
            return f"judge.{name} ({cap:g}) is reached with {used:.6g}: {when}"
    unpriced = today.unpriced if caps.usd_per_day else ever.unpriced if caps.usd_total else 0
    if unpriced:
        return (
            f"a cap in USD is set and the price of {unpriced} calls is unknown: set judge.usd_per_million_in "
            "and judge.usd_per_million_out, or cap tokens instead"
        )
    return None


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
        add(
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
