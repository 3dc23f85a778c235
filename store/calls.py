"""The ledger of calls to outside models: every attempt is a row, also those that failed or were retried."""

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection, insert

from store.tables import calls


@dataclass(frozen=True, slots=True)
class Call:
    """One request that left this machine. Unknown tokens and prices are None, never 0."""

    purpose: str  # judge | hint | teacher
    model: str
    outcome: str  # ok, or the vote status of the fault
    seconds: float
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: float | None = None


def record(connection: Connection, call: Call, turn_id: UUID | None) -> int:
    """Writes the call and returns its id."""
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
