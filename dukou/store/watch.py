"""What users got of one version: the numbers by which a version is compared with the one before.

Cache cost of a publish: prompt tokens cached under the previous version that must be computed again.

Turns that are scored and that no step has trained: what a new version is tried on before it is live.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Float, Integer, and_, case, func, literal, null, or_, select

from dukou.store import contents
from dukou.store.batches import SampleRow
from dukou.store.binary import Int4Array
from dukou.store.scores import counting
from dukou.store.states import Stage
from dukou.store.tables import samples, turn_states, turns

_NEWEST = 2000  # turns looked at: what a version did long ago says little of it now
_NEWEST_TOOLS = 200  # of them with tool calls, which are read in full

#: How an answer begins that refuses, English and Chinese. It counts some that do not, and misses some, of
#: both versions alike: a rise tells.
REFUSAL = (
    r"^\W*((i['’]m|i am|we['’]re|we are) (\w+ ){0,2}(sorry|unable|not able)|(sorry|apologies|unfortunately)\M"
    r"|i (really |just )?(can['’]?t|cannot|can not|won['’]t|will not|must decline)\M|as an ai\M"
    r"|抱歉|对不起|很遗憾|我(无法|不能|没办法)|作为(一个|一名)?(ai|人工智能))"
)
#: What an engine leaves in the text of an answer whose tool calls it could not read.
LEFTOVERS = ("<tool_call>", "<|tool_call", "[TOOL_CALLS]", "<function=")


@dataclass(frozen=True, slots=True)
class SampleMean:
    """A mean over so many turns, and their variance; None where there are too few for one."""

    count: int
    mean: float | None
    variance: float | None


NO_SAMPLE = SampleMean(0, None, None)


@dataclass(frozen=True, slots=True)
class VersionFigures:
    """A version's turns."""

    score: SampleMean
    length: SampleMean  # tokens of an answer, without those that must not be trained
    refusals: SampleMean = NO_SAMPLE  # 1 for an answer that begins as refusals do, else 0
    unreadable: SampleMean = NO_SAMPLE  # of the answers that call tools: 1 for one whose calls cannot be read


def figures(connection: Connection, policy_id: int, version: int) -> VersionFigures:
    """Of main turns that this version alone answered; the newest 2000 of them."""
    value = counting()
    refuses = turns.c.response_text.regexp_match(REFUSAL, flags="i")
    mine = (
        select(
            value.label("score"),
            contents.trained_count(turns).label("length"),
            case((refuses, 1.0), (~refuses, 0.0)).label("refuses"),
        )
        .where(*_of(policy_id, version))
        .order_by(turns.c.id.desc())
        .limit(_NEWEST)
        .subquery()
    )
    columns = [
        figure(column)
        for column in (mine.c.score, mine.c.length, mine.c.refuses)
        for figure in (func.count, func.avg, func.var_samp)
    ]
    row = connection.execute(select(*columns)).one()
    called = connection.execute(_with_tools(policy_id, version)).all()
    return VersionFigures(
        _sampled(*row[:3]), _sampled(*row[3:6]), _sampled(*row[6:]), share(map(_unreadable, called))
    )


def _of(policy_id: int, version: int) -> Sequence[Any]:
    return (
        turns.c.policy_id == policy_id,
        turns.c.policy_version_min == version,
        turns.c.policy_version_max == version,
        turns.c.kind == "main",
        turns.c.status == "ok",
    )


def _with_tools(policy_id: int, version: int) -> Any:
    """The newest answers that call tools, or seem to have tried."""
    left = or_(*(turns.c.response_text.contains(mark, autoescape=True) for mark in LEFTOVERS))
    query = select(turns.c.tool_calls, left.label("left"))
    return (
        query.where(*_of(policy_id, version), or_(turns.c.tool_calls.is_not(None), left))
        .order_by(turns.c.id.desc())
        .limit(_NEWEST_TOOLS)
    )


def _unreadable(row: Any) -> bool:
    return bool(row.left) or not all(map(is_readable, row.tool_calls or ()))


def is_readable(call: Any) -> bool:
    """Whether a client can make this call: a function with a name, and arguments that are a JSON object."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not function.get("name"):
        return False
    arguments = function.get("arguments") or "{}"
    try:
        return isinstance(json.loads(arguments) if isinstance(arguments, str) else arguments, dict)
    except ValueError:
        return False


def share(those: Iterable[bool]) -> SampleMean:
    """How many of them hold, as a mean of ones and zeros."""
    known = list(those)
    if len(known) < 2:
        return SampleMean(len(known), float(known[0]) if known else None, None)
    mean = sum(known) / len(known)
    return SampleMean(len(known), mean, mean * (1 - mean) * len(known) / (len(known) - 1))


def _sampled(count: int, mean: object, variance: object) -> SampleMean:
    return SampleMean(count, *(None if value is None else float(str(value)) for value in (mean, variance)))


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


#: Why a turn with a score and whole ids may have been left out of every batch.
_LEFT_OUT = ("stale", "no_spread", "no_hint", "zero_score", "cut_short")


def newest_held_out(connection: Connection, policy_id: int, count: int, max_tokens: int) -> list[SampleRow]:
    """Up to `count` of a policy's newest, of at most `max_tokens` of prompt and answer.

    They have no advantage: it is 0.
    """
    if count == 0:
        return []
    value = counting()
    answer_tokens = func.cardinality(turns.c.response_ids)
    dropped = and_(turn_states.c.stage == Stage.DROPPED, turn_states.c.reason.in_(_LEFT_OUT))
    query = (
        select(
            turns.c.id,
            value,
            literal(0.0, Float),
            literal(0, Integer),
            contents.prompt_ids(turns),
            turns.c.response_ids,
            turns.c.response_logprobs,
            turns.c.trained_tokens,
            turns.c.temperature,
            turns.c.finish_reason,
            null().cast(Int4Array),
        )
        .join(turn_states, turn_states.c.turn_id == turns.c.id)
        .where(
            turn_states.c.policy_id == policy_id,
            or_(turn_states.c.stage == Stage.SCORED, dropped),
            turns.c.trainable,
            turns.c.temperature.is_not(None),
            turns.c.prompt_tokens > 0,
            answer_tokens > 0,
            turns.c.prompt_tokens + answer_tokens <= max_tokens,
            value.is_not(None),
            ~select(samples.c.turn_id).where(samples.c.turn_id == turns.c.id).exists(),
        )
        .order_by(turns.c.id.desc())
        .limit(count)
    )
    return [SampleRow(*row) for row in connection.execute(query)]
