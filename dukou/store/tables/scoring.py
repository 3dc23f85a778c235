"""Votes, scores, feedback, demonstrations, and every call that they cost."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    Float,
    Identity,
    Index,
    Integer,
    Table,
    Text,
    Uuid,
    text,
)

from dukou.store.tables.base import Json, Timestamp, metadata, now

votes = Table(
    "votes",
    metadata,
    Column("turn_id", Uuid, primary_key=True),
    Column("judge", Text, primary_key=True),  # "rules@1", "llm:openai/gpt-5-mini"
    Column("rubric", Text, primary_key=True),  # "default@1"
    Column("n", Integer, primary_key=True),  # which of the m votes
    Column("status", Text, nullable=False),  # ok | timeout | http_401 | unparsable | empty | truncated | …
    Column("value", Integer),  # -1, 0, 1; NULL unless status is ok
    Column("hint", Text),
    Column("raw", Text),  # the judge's own words
    Column("call_id", BigInteger),
    now("created_at"),
    CheckConstraint("value in (-1, 0, 1)", name="value"),
    CheckConstraint("(status = 'ok') = (value is not null)", name="missing_is_null"),
)

scores = Table(
    "scores",
    metadata,
    Column("turn_id", Uuid, primary_key=True),
    Column("judge", Text, primary_key=True),
    Column("rubric", Text, primary_key=True),
    Column("value", Float),  # in [-1, 1]; NULL with a reason
    Column("reason", Text),  # majority | tie | no_quorum | feedback | regenerated | edited | …
    Column("hint", Text),
    # The judged text seems to speak to the judge: its votes had to agree, and a person may want to look.
    Column("injection_suspected", Boolean, nullable=False, server_default="false"),
    now("created_at"),
    CheckConstraint("value between -1 and 1", name="range"),
    CheckConstraint("value is not null or reason is not null", name="null_has_reason"),
)

calls = Table(
    "calls",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("purpose", Text, nullable=False),  # judge | hint | teacher
    Column("model", Text, nullable=False),
    Column("turn_id", Uuid),
    Column("outcome", Text, nullable=False),  # ok, or the vote status of the fault
    Column("prompt_tokens", BigInteger),
    Column("completion_tokens", BigInteger),
    Column("cost_usd", Float),  # NULL: the provider's price is unknown
    Column("seconds", Float, nullable=False),
    now("created_at"),
)
Index("ix_calls_created_at", calls.c.created_at)

# The ledger's sums, kept beside it in the same transaction: a cap is looked at before every turn.
spending = Table(
    "spending",
    metadata,
    Column("day", Date, primary_key=True),  # UTC
    Column("calls", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),  # of the calls that said how many
    Column("cost_usd", Float, nullable=False),  # of the calls whose price is known
    Column("unpriced", BigInteger, nullable=False),  # calls that came back and whose price is unknown
)

feedback = Table(
    "feedback",
    metadata,
    Column("id", Uuid, primary_key=True),  # from the idempotency key, where the client sent one
    Column("tenant", Text, nullable=False),
    Column("key_id", Text),
    Column("rater", Text),  # who says so, as the client names them
    Column("named_turn", Uuid),  # the turn that was named …
    Column("session_id", Text),  # … or a session: its last main turn before the feedback
    # NULL until the turn is there: feedback may overtake it.
    Column("turn_id", Uuid),
    Column("rating", Integer),
    Column("score", Float),
    Column("comment", Text),
    Column("correction", Text),
    Column("outcome", Json),  # {"success": true, "name": …, "detail": …}
    Column("given_at", Timestamp, nullable=False),
    Column("applied_at", Timestamp),  # when the turn's score took it in
    now("created_at"),
    CheckConstraint("rating in (-1, 0, 1)", name="rating"),
    CheckConstraint("score between -1 and 1", name="score"),
    CheckConstraint("named_turn is not null or session_id is not null", name="names_a_turn"),
)
Index("ix_feedback_turn_id", feedback.c.turn_id)
Index("ix_feedback_new", feedback.c.created_at, postgresql_where=text("applied_at is null"))

# How an answer should have been: for export and SFT, where no teacher gives log-probabilities.
demonstrations = Table(
    "demonstrations",
    metadata,
    Column("turn_id", Uuid, primary_key=True),
    Column("source", Text, primary_key=True),  # feedback | edit | teacher:<model>
    Column("answer", Text, nullable=False),
    Column("hint", Text),  # what the teacher was told
    Column("call_id", BigInteger),
    now("created_at"),
)
