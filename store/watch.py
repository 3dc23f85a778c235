"""What users got of one version: the numbers by which a version is compared with the one before."""

from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from store.scores import COUNTS
from store.tables import scores, turns

_NEWEST = 2000  # turns looked at: what a version did long ago says little of it now


@dataclass(frozen=True, slots=True)
class Sampled:
    """A mean over so many turns, and their variance; None where there are too few for one."""

    count: int
    mean: float | None
    variance: float | None


@dataclass(frozen=True, slots=True)
class Observed:
    """A version's turns."""

    score: Sampled
    length: Sampled  # tokens of an answer


def observed(connection: Connection, policy_id: int, version: int) -> Observed:
    """Of main turns that this version alone answered; the newest 2000 of them."""
    value = (
        select(scores.c.value)
        .where(scores.c.turn_id == turns.c.id, scores.c.value.is_not(None))
        .order_by(*COUNTS)
        .limit(1)
        .scalar_subquery()
    )
    mine = (
        select(value.label("score"), func.cardinality(turns.c.response_ids).label("length"))
        .where(
            turns.c.policy_id == policy_id,
            turns.c.policy_version_min == version,
            turns.c.policy_version_max == version,
            turns.c.kind == "main",
            turns.c.status == "ok",
        )
        .order_by(turns.c.id.desc())
        .limit(_NEWEST)
        .subquery()
    )
    figures = [
        figure(column)
        for column in (mine.c.score, mine.c.length)
        for figure in (func.count, func.avg, func.var_samp)
    ]
    row = connection.execute(select(*figures)).one()
    return Observed(_sampled(*row[:3]), _sampled(*row[3:]))


def _sampled(count: int, mean: object, variance: object) -> Sampled:
    return Sampled(count, *(None if value is None else float(str(value)) for value in (mean, variance)))
