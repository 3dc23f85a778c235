"""What was asked and answered: wide, immutable facts, and the one narrow row of state that each turn has.

Both are partitioned by the time in the turn's id, so no foreign key may point to them: a partition that is
pointed to cannot be dropped. What belongs to a turn has its `turn_id` and is named in `retention.py`.
A turn's messages and prompt ids are stored as what they add to an earlier turn's (`base_id`); the views and
`dukou/store/contents.py` put them back together.

What was said, once: messages, tool lists and the rest of request bodies under the hash of their bytes.

A row is shared by every turn of its tenant and period that has these bytes. The period is the first day of
the partition that the turns lie in, so that dropping an old partition never takes text from a younger one.

Turns that were written before the turn that they go on from.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
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

from dukou.store.binary import Float4Array, Int4Array
from dukou.store.tables.base import Json, Timestamp, metadata, now

sessions = Table(
    "sessions",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("key_id", Text),
    Column("source", Text, nullable=False),  # of the id: path, a header's name, a body field, lineage, new
    now("created_at"),
    Column("last_turn_at", Timestamp, nullable=False),
    Column("done_at", Timestamp),  # X-Session-Done or idle
    Column("done_reason", Text),  # client | idle
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
    # What this row's messages and ids begin with: a turn of the same period; NULL: this row has all of them.
    Column("base_id", Uuid),
    Column("base_messages", Integer, nullable=False, server_default="0"),  # leading messages that base_id has
    Column("base_tokens", Integer, nullable=False, server_default="0"),  # leading ids that base_id has
    Column("depth", Integer, nullable=False, server_default="0"),  # bases until one that has all
    Column("period", Date, nullable=False, server_default="1970-01-01"),  # of the contents: their partition
    Column("rest_hash", LargeBinary),  # → contents: the request body without its messages and tools
    Column("messages_at", Integer),  # the offset in the rest where the messages were; NULL: they are in it
    Column("messages_joint", LargeBinary),  # what stood between two messages: a comma and white space
    Column("tools_at", Integer),  # the offset in the rest where the tools were
    Column("tools_hash", LargeBinary),  # → contents
    Column("message_hashes", LargeBinary),  # → contents, 16 bytes each: the messages after the base's
    Column("message_count", Integer),  # with the base's; NULL: the body had no list of messages
    Column("messages_digest", LargeBinary),  # of all hashes: whether a later turn's begin with these
    Column("sampling", Json),  # the request's own sampling fields, as sent
    Column("sampling_defaults", Json),  # what the engine takes for the fields left out; NULL: unknown
    Column("response_text", Text),
    Column("answer_digest", LargeBinary),  # of `response_text`: whether a later message brings it back
    Column("reasoning_text", Text),
    Column("tool_calls", Json),
    Column("finish_reason", Text),
    Column("matched_stop", Text),  # `stopped_by` as text, whatever its type
    Column("stopped_by", Json),  # what ended the answer: the stop string, or the stop token's id, a number
    Column("usage", Json),
    Column("prompt_ids", Int4Array),  # the ids after the base's
    Column("prompt_tokens", Integer),  # with the base's; NULL: unknown
    Column("prompt_digest", LargeBinary),  # of all prompt ids
    Column("ids_digest", LargeBinary),  # of all prompt and answer ids
    Column("lowest_id", Integer),  # of prompt and answer: whether the model's vocabulary has them all
    Column("highest_id", Integer),
    Column("prefix_ok", Boolean),  # the ids begin with the parent's prompt and answer; NULL: not known
    Column("response_ids", Int4Array),
    Column("response_logprobs", Float4Array),
    # Pairs of begin and end: the positions of `response_ids` that may be trained; NULL: all of them.
    Column("trained_tokens", Int4Array),
    Column("capture", Text, nullable=False),
    Column("sampling_class", Text),  # free | truncated | constrained | greedy
    Column("temperature", Float),  # what was sampled at: the request's, else the engine's default
    Column("trainable", Boolean, nullable=False),
    Column("untrainable_reason", Text),
    # A NUL or a lone surrogate, which Postgres cannot hold, was replaced by a mark.
    Column("text_altered", Boolean, nullable=False, server_default="false"),
    Column("history_hash", LargeBinary),  # canonical rolling hash over messages and answer
    Column("prompt_hash", LargeBinary),  # the same over the messages alone: equal for regenerations
    Column("exchange_hash", LargeBinary),  # of the last message and the answer: what a window ends with
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
    CheckConstraint(
        "base_id is not null or (base_messages = 0 and base_tokens = 0 and depth = 0)", name="base"
    ),
    CheckConstraint(
        "prompt_ids is null or prompt_tokens is not distinct from base_tokens + cardinality(prompt_ids)",
        name="prompt_tokens",
    ),
    postgresql_partition_by="RANGE (id)",
)
# The newest turns that read alike are found without reading the others. By time and not by id: the planner
# might else walk the primary key, through all other turns.
Index("ix_turns_lineage", turns.c.tenant, turns.c.history_hash, turns.c.started_at)
Index("ix_turns_prompt", turns.c.tenant, turns.c.prompt_hash, turns.c.started_at)
Index("ix_turns_exchange", turns.c.tenant, turns.c.exchange_hash, turns.c.started_at)
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
    Column("turn_id", Uuid, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("policy_id", Integer),
    Column("stage", Text, nullable=False),  # legal moves: dukou/store/states.py
    Column("reason", Text),  # why it is dropped, or why it waits
    Column("next_turn_id", Uuid),  # the turn whose new messages are this one's next state
    Column("lease_owner", Text),
    Column("lease_token", BigInteger, nullable=False, server_default="0"),  # fencing: grows with every claim
    Column("lease_until", Timestamp),
    Column("attempts", Integer, nullable=False, server_default="0"),
    now("changed_at"),
    postgresql_partition_by="RANGE (turn_id)",
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


contents = Table(
    "contents",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("period", Date, primary_key=True),
    Column("hash", LargeBinary, primary_key=True),  # blake2b, 16 bytes, of the client's bytes
    Column("body", LargeBinary, nullable=False),  # exactly the client's bytes
    # An answer that came back as a message is not stored again: the body lacks it at this offset.
    Column("answer_id", Uuid),
    Column("answer_at", Integer),
    # What Postgres can show instead, where it cannot read `body`: a NUL or a lone surrogate is marked.
    Column("readable", Text),
    postgresql_partition_by="RANGE (period)",
)


orphans = Table(
    "orphans",
    metadata,
    Column("turn_id", Uuid, primary_key=True),  # choice 0 of the request
    Column("tenant", Text, nullable=False),
    Column("history_hash", LargeBinary),  # of the messages up to the last answer in the request
    Column("prompt_hash", LargeBinary),  # of those before that answer: what its turn was asked
    Column("parent_id", Uuid),  # the parent that the client names
    Column("messages", Integer),  # up to the last answer and with it; NULL: the parent is only named
    Column("brings_more", Boolean, nullable=False),  # messages follow that answer
    Column("names_session", Boolean, nullable=False),  # the client decides the session
)
Index("ix_orphans_prompt", orphans.c.tenant, orphans.c.prompt_hash)
Index("ix_orphans_parent", orphans.c.tenant, orphans.c.parent_id)
