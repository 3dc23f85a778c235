"""Cache cost of a publish: prompt tokens cached under the previous version that must be computed again."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, case, func, select

from store.tables import turns


@dataclass(frozen=True, slots=True)
class CacheCost:
    """Tokens that were computed under one version. The next publish would cost about `cold` again."""

    cold: int  # prompt and answer of the parent turn, where another version had computed them
    fresh: int  # all others: new messages and answers


def cache_cost(connection: Connection, policy_id: int, version: int) -> CacheCost:
    """Over the turns that a version alone answered. A turn without a known parent is all fresh."""
    parent = turns.alias("parent")
    mine = and_(
        turns.c.policy_id == policy_id,
        turns.c.policy_version_min == version,
        turns.c.policy_version_max == version,
    )
    whole = _tokens(turns.c)
    shared = func.coalesce(_tokens(parent.c), 0)
    same = parent.c.policy_version_max == version
    cold = case((same, 0), else_=shared)
    query = (
        select(func.coalesce(func.sum(cold), 0), func.coalesce(func.sum(whole - shared), 0))
        .select_from(turns)
        .join(parent, parent.c.id == turns.c.parent_id, isouter=True)
        .where(mine)
    )
    return CacheCost(*(int(value) for value in connection.execute(query).one()))


def why_wait(cost: CacheCost, limit: float) -> str | None:
    """Why the next publish should wait for more traffic; None where it need not. `limit` 0: none."""
    if limit == 0 or cost.cold <= limit * cost.fresh:
        return None
    return (
        f"the last publish made {cost.cold} cached tokens cold, {cost.fresh} others were computed since; "
        f"publish.max_cold_share = {limit:g} waits for {cost.cold / limit:.0f}"
    )


def _tokens(columns: Any) -> Any:
    return columns.prompt_tokens + func.coalesce(func.cardinality(columns.response_ids), 0)
