"""Costs of outside models, as sums that are read before every turn; and the caps on them."""

from dataclasses import dataclass
from datetime import UTC, date, datetime

from sqlalchemy import Connection, func, select
from sqlalchemy.dialects.postgresql import insert

from store.tables import spending


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
