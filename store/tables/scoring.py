"""Votes, scores, and every call that they cost."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Identity,
    Integer,
    Table,
    Text,
    Uuid,
)

from store.tables.base import metadata, now

votes = Table(
    "votes",
    metadata,
    Column("turn_id", Uuid, ForeignKey("turns.id", ondelete="CASCADE"), primary_key=True),
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
    Column("turn_id", Uuid, ForeignKey("turns.id", ondelete="CASCADE"), primary_key=True),
    Column("judge", Text, primary_key=True),
    Column("rubric", Text, primary_key=True),
    Column("value", Float),  # in [-1, 1]; NULL with a reason
    Column("reason", Text),  # majority | tie | no_quorum | feedback | …
    Column("hint", Text),
    # The judged text tries to speak to the judge: it was neutralised, and a person may want to look.
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
