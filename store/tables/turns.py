"""What was asked and answered: wide, immutable facts, and the one narrow row of state that each turn has."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    Uuid,
    text,
)

from store.arrays import Float4Array, Int4Array
from store.tables.base import Json, Timestamp, metadata, now

sessions = Table(
    "sessions",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("key_id", Text),
    Column("source", Text, nullable=False),  # of the id: path, a header's name, a body field, lineage, new
    now("created_at"),
    Column("last_turn_at", Timestamp, nullable=False),
    Column("done_at", Timestamp),  # X-Session-Done, max_turns or idle
    Column("done_reason", Text),  # client | max_turns | idle
)
Index("ix_sessions_open", sessions.c.last_turn_at, postgresql_where=text("done_at is null"))

turns = Table(
    "turns",
    metadata,
    Column("id", Uuid, primary_key=True),  # UUIDv7, made by the gateway when the request came
    Column("request_id", Uuid, nullable=False),  # the id of choice 0: n > 1 makes a row a choice
    Column("choice_index", Integer, nullable=False, server_default="0"),
    Column("tenant", Text, nullable=False),
    Column("key_id", Text),  # digest prefix of the client's key, never the key
    Column("user_name", Text),  # the `user` / `safety_identifier` field: a person, never a session
    Column("policy_id", Integer, ForeignKey("policies.id")),
    Column("policy_version_min", Integer),  # NULL: unknown, with untrainable_reason
    Column("policy_version_max", Integer),
    Column("session_id", Text, nullable=False),
    Column("segment_id", Uuid, nullable=False),  # the id of the segment's first turn
    Column("parent_id", Uuid),  # the turn whose prompt-plus-answer this prompt extends
    Column("parent_messages", Integer),  # how many of this request's messages belong to the parent's history
    Column("ordinal", Integer, nullable=False),  # position among the session's turns of this kind, from 0
    Column("kind", Text, nullable=False),
    Column("kind_reason", Text),
    Column("session_source", Text, nullable=False),
    Column("retry_of", Uuid),
    Column("endpoint", Text, nullable=False),
    Column("stream", Boolean, nullable=False),
    Column("model", Text),  # as the client asked
    Column("engine", Text),
    Column("status", Text, nullable=False),
    Column("error", Text),
    Column("http_status", Integer),
    Column("request_body", LargeBinary, nullable=False),  # exactly the client's bytes
    Column("messages", Json),  # as sent, in full; NULL where the body was no JSON
    Column("tools", Json),
    Column("sampling", Json),
    Column("response_text", Text),
    Column("reasoning_text", Text),
    Column("tool_calls", Json),
    Column("finish_reason", Text),
    Column("matched_stop", Text),  # the stop string, or the id of the stop token, that ended the answer
    Column("usage", Json),
    Column("prompt_ids", Int4Array),
    Column("response_ids", Int4Array),
    Column("response_logprobs", Float4Array),
    Column("capture", Text, nullable=False),
    Column("sampling_class", Text),  # free | truncated | constrained | greedy
    Column("temperature", Float),  # what was sampled at: the request's, else the engine's default 1.0
    Column("trainable", Boolean, nullable=False),
    Column("untrainable_reason", Text),
    # A NUL or a lone surrogate, which Postgres cannot hold, was replaced by a mark.
    Column("text_altered", Boolean, nullable=False, server_default="false"),
    Column("history_hash", LargeBinary),  # canonical rolling hash over messages and answer
    Column("prompt_hash", LargeBinary),  # the same over the messages alone: equal for regenerations
    Column("client_request_id", Text),
    Column("started_at", Timestamp, nullable=False),
    Column("first_token_at", Timestamp),
    Column("finished_at", Timestamp),
    now("recorded_at"),
    CheckConstraint("kind in ('main', 'side')", name="kind"),
    CheckConstraint("capture in ('sampled', 'recomputed', 'none')", name="capture"),
    CheckConstraint(
        "status in ('ok', 'truncated', 'upstream_error', 'client_disconnect', 'rejected', 'interrupted')",
        name="status",
    ),
    CheckConstraint("trainable = (untrainable_reason is null)", name="trainable_or_reason"),
    CheckConstraint(
        "response_logprobs is null or cardinality(response_ids) = cardinality(response_logprobs)",
        name="one_logprob_per_id",
    ),
    CheckConstraint("policy_version_min <= policy_version_max", name="version_span"),
)
Index("ix_turns_lineage", turns.c.tenant, turns.c.history_hash)
Index("ix_turns_prompt", turns.c.tenant, turns.c.prompt_hash)
Index(
    "ix_turns_summaries", turns.c.tenant, turns.c.started_at, postgresql_where=text("kind_reason = 'summary'")
)
Index("ix_turns_session", turns.c.tenant, turns.c.session_id, turns.c.started_at)
Index("ix_turns_parent_id", turns.c.parent_id)
Index(
    "ix_turns_version", turns.c.policy_id, turns.c.policy_version_min, turns.c.policy_version_max, turns.c.id
)

turn_states = Table(
    "turn_states",
    metadata,
    Column("turn_id", Uuid, ForeignKey("turns.id", ondelete="CASCADE"), primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("policy_id", Integer),
    Column("stage", Text, nullable=False),  # legal moves: store/stages.py
    Column("reason", Text),  # why it is dropped, or why it waits
    Column("next_turn_id", Uuid),  # the turn whose new messages are this one's next state
    Column("lease_owner", Text),
    Column("lease_token", BigInteger, nullable=False, server_default="0"),  # fencing: grows with every claim
    Column("lease_until", Timestamp),
    Column("attempts", Integer, nullable=False, server_default="0"),
    now("changed_at"),
)
Index("ix_turn_states_scorable", turn_states.c.turn_id, postgresql_where=text("stage = 'scorable'"))
Index(
    "ix_turn_states_scored",
    turn_states.c.policy_id,
    turn_states.c.turn_id,
    postgresql_where=text("stage = 'scored'"),
)
Index("ix_turn_states_stage", turn_states.c.stage, turn_states.c.reason)

set_aside = Table(
    "set_aside",
    metadata,
    Column("id", Uuid, primary_key=True),  # the turn's id
    Column("error", Text, nullable=False),
    Column("record", LargeBinary, nullable=False),  # the spool records as they were: nothing is lost
    now("created_at"),
)
