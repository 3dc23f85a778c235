"""Every table, once. Migrations are checked against this file (`alembic check`).

Wide, immutable facts (`turns`, `votes`, `scores`, `samples`) are apart from the one narrow, mutable row
that each turn has (`turn_states`): claims, the funnel and the status sentence read only the narrow one.
People read the views (`store/views.py`), which stay when tables change.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    text,
)

from store.arrays import Float4Array, Int4Array

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Timestamp = DateTime(timezone=True)
Json = JSON(none_as_null=True)  # None is NULL, never the JSON word null


def _now(name: str) -> Column[object]:
    return Column(name, Timestamp, nullable=False, server_default=func.now())


policies = Table(
    "policies",
    metadata,
    Column("id", Integer, Identity(), primary_key=True),
    Column("name", Text, nullable=False, unique=True),  # "default" for scope global
    Column("tenant", Text),  # NULL: learns from every tenant
    Column("scope", Text, nullable=False),  # global | tenant | user
    Column("base_model", Text, nullable=False),  # path of the model that is version 0
    # The live pointer: the truth that every engine is made to match.
    Column("live_version", Integer, nullable=False, server_default="0"),
    _now("created_at"),
    CheckConstraint("scope in ('global', 'tenant', 'user')", name="scope"),
)

versions = Table(
    "versions",
    metadata,
    Column("policy_id", Integer, ForeignKey("policies.id"), primary_key=True),
    Column("version", Integer, primary_key=True),  # only grows within a policy; 0 is the base model
    Column("parent", Integer),  # the version it was trained from; NULL for 0
    Column("batch_id", BigInteger),  # the batch whose step made it; NULL for 0
    Column("path", Text, nullable=False),  # what an engine loads: a model folder or an adapter folder
    Column("form", Text, nullable=False),  # full | adapter
    Column("probe", Json),  # fixed prompts with the trainer's log-probabilities (learner/train/probe.py)
    Column("status", Text, nullable=False),  # written | live | retired | refused
    Column("reason", Text),  # why it was refused or retired
    _now("created_at"),
    Column("live_at", Timestamp),
    ForeignKeyConstraint(["policy_id", "parent"], ["versions.policy_id", "versions.version"]),
    CheckConstraint("form in ('full', 'adapter')", name="form"),
    CheckConstraint("status in ('written', 'live', 'retired', 'refused')", name="status"),
    CheckConstraint("version >= 0 and (parent is null) = (version = 0)", name="tree"),
)

sessions = Table(
    "sessions",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("key_id", Text),
    Column("source", Text, nullable=False),  # of the id: path, a header's name, a body field, lineage, new
    _now("created_at"),
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
    _now("recorded_at"),
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
    _now("changed_at"),
)
Index("ix_turn_states_scorable", turn_states.c.turn_id, postgresql_where=text("stage = 'scorable'"))
Index(
    "ix_turn_states_scored",
    turn_states.c.policy_id,
    turn_states.c.turn_id,
    postgresql_where=text("stage = 'scored'"),
)
Index("ix_turn_states_stage", turn_states.c.stage, turn_states.c.reason)

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
    _now("created_at"),
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
    _now("created_at"),
    CheckConstraint("value between -1 and 1", name="range"),
    CheckConstraint("value is not null or reason is not null", name="null_has_reason"),
)

batches = Table(
    "batches",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("policy_id", Integer, ForeignKey("policies.id"), nullable=False),
    Column("live_version", Integer, nullable=False),  # when it closed: staleness counts from here
    Column("closed_because", Text, nullable=False),  # full | timeout
    Column("settings", Json, nullable=False),  # the batch, loss and trainer settings it was made under
    Column("baseline", Json, nullable=False),  # the running baseline's state after this batch
    Column("status", Text, nullable=False, server_default="closed"),  # closed | trained | skipped
    Column("reason", Text),
    _now("created_at"),
    CheckConstraint("status in ('closed', 'trained', 'skipped')", name="status"),
)

samples = Table(
    "samples",
    metadata,
    Column("turn_id", Uuid, ForeignKey("turns.id"), primary_key=True),  # in one batch, ever
    Column("batch_id", BigInteger, ForeignKey("batches.id"), nullable=False, index=True),
    Column("position", Integer, nullable=False),  # order inside the batch
    Column("reward", Float, nullable=False),
    Column("baseline", Float, nullable=False),
    Column("advantage", Float, nullable=False),
    Column("staleness", Integer, nullable=False),
    UniqueConstraint("batch_id", "position"),
)

steps = Table(
    "steps",
    metadata,
    Column("batch_id", BigInteger, ForeignKey("batches.id"), primary_key=True),  # a batch is in one step
    Column("policy_id", Integer, ForeignKey("policies.id"), nullable=False),
    Column("number", Integer, nullable=False),  # optimizer steps of this policy, from 1
    Column("version", Integer, nullable=False),  # the version that it made
    Column("checkpoint", Text, nullable=False),
    Column("metrics", Json, nullable=False),
    Column("seconds", Float, nullable=False),
    _now("created_at"),
    ForeignKeyConstraint(["policy_id", "version"], ["versions.policy_id", "versions.version"]),
    UniqueConstraint("policy_id", "version"),
)

publications = Table(
    "publications",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("policy_id", Integer, nullable=False),
    Column("version", Integer, nullable=False),
    Column("engine", Text, nullable=False),
    Column("status", Text, nullable=False),  # loaded | failed
    Column("error", Text),
    Column("reported_version", Text),  # what the engine itself said afterwards
    Column("probe", Json),  # {"mean_abs_diff": nats, "max_abs_diff": nats}, or why there is none
    Column("seconds", Float, nullable=False),
    _now("created_at"),
    ForeignKeyConstraint(["policy_id", "version"], ["versions.policy_id", "versions.version"]),
)

engines = Table(
    "engines",
    metadata,
    Column("url", Text, primary_key=True),
    Column("state", Text, nullable=False),  # ready | starting | paused | updating | dead
    Column("reason", Text),
    Column("version", Integer),  # what it serves, as verified; NULL: unknown
    Column("dialect", Text),  # sglang | vllm | plain
    _now("seen_at"),
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
    _now("created_at"),
)

set_aside = Table(
    "set_aside",
    metadata,
    Column("id", Uuid, primary_key=True),  # the turn's id
    Column("error", Text, nullable=False),
    Column("record", LargeBinary, nullable=False),  # the spool records as they were: nothing is lost
    _now("created_at"),
)

processes = Table(
    "processes",
    metadata,
    Column("name", Text, primary_key=True),  # "learner", "drainer", "reconciler"
    Column("doing", Text, nullable=False),
    Column("waits_for", Text),  # the sentence that `learner status` repeats
    Column("detail", Json),
    _now("started_at"),
    _now("beat_at"),
)

leases = Table(
    "leases",
    metadata,
    Column("name", Text, primary_key=True),  # "trainer:<policy>", "reconciler:<engine>"
    Column("owner", Text, nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("until", Timestamp, nullable=False),
)
