"""Turns that are scored and that no step has trained: what a new version is tried on before it is live."""

from sqlalchemy import Connection, Float, Integer, and_, func, literal, null, or_, select

from store import whole
from store.arrays import Int4Array
from store.batches import SampleRow
from store.scores import counting
from store.stages import Stage
from store.tables import samples, turn_states, turns

#: Why a turn with a score and whole ids may have been left out of every batch.
_LEFT_OUT = ("stale", "no_spread", "no_hint", "zero_score", "cut_short")


def newest(connection: Connection, policy_id: int, count: int, max_tokens: int) -> list[SampleRow]:
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
            whole.prompt_ids(turns),
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
