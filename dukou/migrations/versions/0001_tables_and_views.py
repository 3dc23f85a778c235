"""Every table of the first release, and its views.

Longer than other files because a migration is frozen: it repeats `store/tables/` as that was, imports nothing
of Dukou, and its views and functions are files that nobody edits.
"""

from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# What users and models said: large, and read rarely. lz4 costs a fraction of the CPU of the default pglz.
COMPRESSED = {
    "contents": ("body", "readable"),
    "turns": ("response_text", "reasoning_text", "tool_calls", "prompt_ids", "response_ids"),
}

# A state is updated several times: room on the page keeps the lease's updates out of the indexes (HOT), and
# vacuum comes after thousands of dead rows, not after a fifth of all rows there are.
STATE_OPTIONS = "fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000"
# Partitioned tables → storage options of their default partitions. Texts and ids of turns are kept out of the
# row, also short ones: look-ups by digest read many rows per page, and no history.
DEFAULTS = {
    "contents": "",
    "turns": " with (toast_tuple_target = 256)",
    "turn_states": f" with ({STATE_OPTIONS})",
}

SQL = Path(__file__).resolve().parents[1] / "sql"
# Each is dropped before those that it reads.
VIEWS = (
    "preference, demonstration, version, cost, funnel_reason, funnel, funnel_stage, progress, trajectory,"
    " conversation, turn"
)
FUNCTIONS = (
    "turn_request_body(uuid), turn_prompt_ids(uuid), turn_tools(text, date, bytea), turn_messages(uuid),"
    " content_body(bytea, uuid, int), turn_message_hashes(uuid)"
)


def upgrade() -> None:
    create_tables()
    store_compactly()
    make_default_partitions()
    run("0001_functions.sql")
    run("0001_views.sql")


def downgrade() -> None:
    op.execute(f"drop view if exists {VIEWS}")
    op.execute(f"drop function if exists {FUNCTIONS}")
    drop_tables()


def run(script: str) -> None:
    """Runs the statements of a file in dukou/migrations/sql, in the migration's transaction."""
    statements = (SQL / script).read_text(encoding="utf-8")
    op.get_bind().exec_driver_sql(statements, execution_options={"no_parameters": True})


def make_default_partitions() -> None:
    """Of turns whose time has no partition of its own."""
    like = "including defaults including constraints including storage including compression"
    for table, options in DEFAULTS.items():
        op.execute(f"create table {table}_default (like {table} {like}){options}")
        op.execute(f"alter table {table} attach partition {table}_default default")


def store_compactly() -> None:
    """lz4 where the server was built with it (the embedded one may not be); log-probabilities as they are."""
    methods = sa.text("select enumvals from pg_settings where name = 'default_toast_compression'")
    if "lz4" in (op.get_bind().scalar(methods) or []):
        for table, columns in COMPRESSED.items():
            for column in columns:
                op.execute(f"alter table {table} alter column {column} set compression lz4")
    op.execute("alter table turns alter column response_logprobs set storage external")  # random digits


def create_tables() -> None:
    op.create_table(
        "calls",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("turn_id", sa.Uuid()),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger()),
        sa.Column("completion_tokens", sa.BigInteger()),
        sa.Column("cost_usd", sa.Float()),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_calls")),
    )
    op.create_index("ix_calls_created_at", "calls", ["created_at"], unique=False)
    op.create_table(
        "contents",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("period", sa.Date(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("answer_id", sa.Uuid()),
        sa.Column("answer_at", sa.Integer()),
        sa.Column("readable", sa.Text()),
        sa.PrimaryKeyConstraint("tenant", "period", "hash", name=op.f("pk_contents")),
        postgresql_partition_by="RANGE (period)",
    )
    op.create_table(
        "demonstrations",
        sa.Column("turn_id", sa.Uuid(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("hint", sa.Text()),
        sa.Column("call_id", sa.BigInteger()),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("turn_id", "source", name=op.f("pk_demonstrations")),
    )
    op.create_table(
        "engines",
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("version", sa.Integer()),
        sa.Column("dialect", sa.Text()),
        sa.Column("beside", sa.ARRAY(sa.Text()), server_default="{}", nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("url", name=op.f("pk_engines")),
    )
    op.create_table(
        "feedback",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text()),
        sa.Column("rater", sa.Text()),
        sa.Column("named_turn", sa.Uuid()),
        sa.Column("session_id", sa.Text()),
        sa.Column("turn_id", sa.Uuid()),
        sa.Column("rating", sa.Integer()),
        sa.Column("score", sa.Float()),
        sa.Column("comment", sa.Text()),
        sa.Column("correction", sa.Text()),
        sa.Column("outcome", sa.JSON()),
        sa.Column("given_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("applied_at", sa.DateTime(timezone=True)),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "named_turn is not null or session_id is not null", name=op.f("ck_feedback_names_a_turn")
        ),
        sa.CheckConstraint("rating in (-1, 0, 1)", name=op.f("ck_feedback_rating")),
        sa.CheckConstraint("score between -1 and 1", name=op.f("ck_feedback_score")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_feedback")),
    )
    op.create_index(
        "ix_feedback_new",
        "feedback",
        ["created_at"],
        unique=False,
        postgresql_where=sa.text("applied_at is null"),
    )
    op.create_index("ix_feedback_turn_id", "feedback", ["turn_id"], unique=False)
    op.create_table(
        "hints",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("turn_id", sa.Uuid(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("prompt_ids", sa.ARRAY(sa.Integer()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hints")),
    )
    op.create_index(op.f("ix_hints_turn_id"), "hints", ["turn_id"], unique=False)
    op.create_table(
        "leases",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )
    op.create_table(
        "orphans",
        sa.Column("turn_id", sa.Uuid(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("history_hash", sa.LargeBinary()),
        sa.Column("prompt_hash", sa.LargeBinary()),
        sa.Column("parent_id", sa.Uuid()),
        sa.Column("messages", sa.Integer()),
        sa.Column("brings_more", sa.Boolean(), nullable=False),
        sa.Column("names_session", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("turn_id", name=op.f("pk_orphans")),
    )
    op.create_index("ix_orphans_parent", "orphans", ["tenant", "parent_id"], unique=False)
    op.create_index("ix_orphans_prompt", "orphans", ["tenant", "prompt_hash"], unique=False)
    op.create_table(
        "policies",
        sa.Column("id", sa.Integer(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text()),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("base_model", sa.Text(), nullable=False),
        sa.Column("live_version", sa.Integer(), server_default="0", nullable=False),
        sa.Column("pinned_at", sa.DateTime(timezone=True)),
        sa.Column("trial_version", sa.Integer()),
        sa.Column("trial_share", sa.Float()),
        sa.Column("trial_at", sa.DateTime(timezone=True)),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("scope in ('global', 'tenant', 'user')", name=op.f("ck_policies_scope")),
        sa.CheckConstraint(
            "num_nonnulls(trial_version, trial_share, trial_at) in (0, 3)",
            name=op.f("ck_policies_trial_is_whole"),
        ),
        sa.CheckConstraint("trial_share > 0 and trial_share < 1", name=op.f("ck_policies_trial_share")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_policies")),
        sa.UniqueConstraint("name", name=op.f("uq_policies_name")),
    )
    op.create_table(
        "processes",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("doing", sa.Text(), nullable=False),
        sa.Column("waits_for", sa.Text()),
        sa.Column("detail", sa.JSON()),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("beat_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_processes")),
    )
    op.create_table(
        "scores",
        sa.Column("turn_id", sa.Uuid(), nullable=False),
        sa.Column("judge", sa.Text(), nullable=False),
        sa.Column("rubric", sa.Text(), nullable=False),
        sa.Column("value", sa.Float()),
        sa.Column("reason", sa.Text()),
        sa.Column("hint", sa.Text()),
        sa.Column("injection_suspected", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("value between -1 and 1", name=op.f("ck_scores_range")),
        sa.CheckConstraint("value is not null or reason is not null", name=op.f("ck_scores_null_has_reason")),
        sa.PrimaryKeyConstraint("turn_id", "judge", "rubric", name=op.f("pk_scores")),
    )
    op.create_table(
        "sessions",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text()),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("last_turn_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("done_at", sa.DateTime(timezone=True)),
        sa.Column("done_reason", sa.Text()),
        sa.PrimaryKeyConstraint("tenant", "id", name=op.f("pk_sessions")),
    )
    op.create_index(
        "ix_sessions_open",
        "sessions",
        ["last_turn_at"],
        unique=False,
        postgresql_where=sa.text("done_at is null"),
    )
    op.create_table(
        "set_aside",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_set_aside")),
    )
    op.create_table(
        "spending",
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost_usd", sa.Float(), nullable=False),
        sa.Column("unpriced", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("day", name=op.f("pk_spending")),
    )
    op.create_table(
        "turn_states",
        sa.Column("turn_id", sa.Uuid(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("policy_id", sa.Integer()),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("next_turn_id", sa.Uuid()),
        sa.Column("lease_owner", sa.Text()),
        sa.Column("lease_token", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True)),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("turn_id", name=op.f("pk_turn_states")),
        postgresql_partition_by="RANGE (turn_id)",
    )
    op.create_index(
        "ix_turn_states_scorable",
        "turn_states",
        ["turn_id"],
        unique=False,
        postgresql_where=sa.text("stage = 'scorable'"),
    )
    op.create_index(
        "ix_turn_states_scored",
        "turn_states",
        ["policy_id", "turn_id"],
        unique=False,
        postgresql_where=sa.text("stage = 'scored'"),
    )
    op.create_index("ix_turn_states_stage", "turn_states", ["stage", "reason"], unique=False)
    op.create_table(
        "votes",
        sa.Column("turn_id", sa.Uuid(), nullable=False),
        sa.Column("judge", sa.Text(), nullable=False),
        sa.Column("rubric", sa.Text(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("value", sa.Integer()),
        sa.Column("hint", sa.Text()),
        sa.Column("raw", sa.Text()),
        sa.Column("call_id", sa.BigInteger()),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("(status = 'ok') = (value is not null)", name=op.f("ck_votes_missing_is_null")),
        sa.CheckConstraint("value in (-1, 0, 1)", name=op.f("ck_votes_value")),
        sa.PrimaryKeyConstraint("turn_id", "judge", "rubric", "n", name=op.f("pk_votes")),
    )
    op.create_table(
        "batches",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("policy_id", sa.Integer(), nullable=False),
        sa.Column("live_version", sa.Integer(), nullable=False),
        sa.Column("closed_because", sa.Text(), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("baseline", sa.JSON(), nullable=False),
        sa.Column("status", sa.Text(), server_default="closed", nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("detail", sa.Text()),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("status in ('closed', 'trained', 'skipped')", name=op.f("ck_batches_status")),
        sa.ForeignKeyConstraint(["policy_id"], ["policies.id"], name=op.f("fk_batches_policy_id_policies")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batches")),
    )
    op.create_table(
        "turns",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("request_id", sa.Uuid(), nullable=False),
        sa.Column("choice_index", sa.Integer(), server_default="0", nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text()),
        sa.Column("user_name", sa.Text()),
        sa.Column("policy_id", sa.Integer()),
        sa.Column("policy_version_min", sa.Integer()),
        sa.Column("policy_version_max", sa.Integer()),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("segment_id", sa.Uuid(), nullable=False),
        sa.Column("parent_id", sa.Uuid()),
        sa.Column("parent_messages", sa.Integer()),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("kind_reason", sa.Text()),
        sa.Column("session_source", sa.Text(), nullable=False),
        sa.Column("retry_of", sa.Uuid()),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("stream", sa.Boolean(), nullable=False),
        sa.Column("model", sa.Text()),
        sa.Column("engine", sa.Text()),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("http_status", sa.Integer()),
        sa.Column("base_id", sa.Uuid()),
        sa.Column("base_messages", sa.Integer(), server_default="0", nullable=False),
        sa.Column("base_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("depth", sa.Integer(), server_default="0", nullable=False),
        sa.Column("period", sa.Date(), server_default="1970-01-01", nullable=False),
        sa.Column("rest_hash", sa.LargeBinary()),
        sa.Column("messages_at", sa.Integer()),
        sa.Column("messages_joint", sa.LargeBinary()),
        sa.Column("tools_at", sa.Integer()),
        sa.Column("tools_hash", sa.LargeBinary()),
        sa.Column("message_hashes", sa.LargeBinary()),
        sa.Column("message_count", sa.Integer()),
        sa.Column("messages_digest", sa.LargeBinary()),
        sa.Column("sampling", sa.JSON()),
        sa.Column("response_text", sa.Text()),
        sa.Column("answer_digest", sa.LargeBinary()),
        sa.Column("reasoning_text", sa.Text()),
        sa.Column("tool_calls", sa.JSON()),
        sa.Column("finish_reason", sa.Text()),
        sa.Column("matched_stop", sa.Text()),
        sa.Column("usage", sa.JSON()),
        sa.Column("prompt_ids", sa.ARRAY(sa.Integer())),
        sa.Column("prompt_tokens", sa.Integer()),
        sa.Column("prompt_digest", sa.LargeBinary()),
        sa.Column("ids_digest", sa.LargeBinary()),
        sa.Column("lowest_id", sa.Integer()),
        sa.Column("highest_id", sa.Integer()),
        sa.Column("prefix_ok", sa.Boolean()),
        sa.Column("response_ids", sa.ARRAY(sa.Integer())),
        sa.Column("response_logprobs", sa.ARRAY(sa.REAL())),
        sa.Column("capture", sa.Text(), nullable=False),
        sa.Column("sampling_class", sa.Text()),
        sa.Column("temperature", sa.Float()),
        sa.Column("trainable", sa.Boolean(), nullable=False),
        sa.Column("untrainable_reason", sa.Text()),
        sa.Column("text_altered", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("history_hash", sa.LargeBinary()),
        sa.Column("prompt_hash", sa.LargeBinary()),
        sa.Column("exchange_hash", sa.LargeBinary()),
        sa.Column("client_request_id", sa.Text()),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("first_token_at", sa.DateTime(timezone=True)),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.Column("recorded_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("capture in ('sampled', 'recomputed', 'none')", name=op.f("ck_turns_capture")),
        sa.CheckConstraint("kind in ('main', 'side')", name=op.f("ck_turns_kind")),
        sa.CheckConstraint(
            "status in ('ok', 'truncated', 'upstream_error', 'client_disconnect', 'rejected', 'interrupted')",
            name=op.f("ck_turns_status"),
        ),
        sa.CheckConstraint(
            "base_id is not null or (base_messages = 0 and base_tokens = 0 and depth = 0)",
            name=op.f("ck_turns_base"),
        ),
        sa.CheckConstraint("policy_version_min <= policy_version_max", name=op.f("ck_turns_version_span")),
        sa.CheckConstraint(
            "prompt_ids is null or prompt_tokens is not distinct from base_tokens + cardinality(prompt_ids)",
            name=op.f("ck_turns_prompt_tokens"),
        ),
        sa.CheckConstraint(
            "response_logprobs is null or cardinality(response_ids) = cardinality(response_logprobs)",
            name=op.f("ck_turns_one_logprob_per_id"),
        ),
        sa.CheckConstraint(
            "trainable = (untrainable_reason is null)", name=op.f("ck_turns_trainable_or_reason")
        ),
        sa.ForeignKeyConstraint(["policy_id"], ["policies.id"], name=op.f("fk_turns_policy_id_policies")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_turns")),
        postgresql_partition_by="RANGE (id)",
    )
    op.create_index("ix_turns_exchange", "turns", ["tenant", "exchange_hash"], unique=False)
    op.create_index("ix_turns_lineage", "turns", ["tenant", "history_hash"], unique=False)
    op.create_index("ix_turns_parent_id", "turns", ["parent_id"], unique=False)
    op.create_index("ix_turns_prompt", "turns", ["tenant", "prompt_hash"], unique=False)
    op.create_index("ix_turns_session", "turns", ["tenant", "session_id", "started_at"], unique=False)
    op.create_index(
        "ix_turns_summaries",
        "turns",
        ["tenant", "started_at"],
        unique=False,
        postgresql_where=sa.text("kind_reason = 'summary'"),
    )
    op.create_index(
        "ix_turns_version",
        "turns",
        ["policy_id", "policy_version_min", "policy_version_max", "id"],
        unique=False,
    )
    op.create_table(
        "versions",
        sa.Column("policy_id", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("parent", sa.Integer()),
        sa.Column("batch_id", sa.BigInteger()),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("form", sa.Text(), nullable=False),
        sa.Column("probe", sa.JSON()),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("live_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint("form in ('full', 'adapter')", name=op.f("ck_versions_form")),
        sa.CheckConstraint(
            "status in ('written', 'live', 'retired', 'refused')", name=op.f("ck_versions_status")
        ),
        sa.CheckConstraint(
            "version >= 0 and (parent is null) = (version = 0)", name=op.f("ck_versions_tree")
        ),
        sa.ForeignKeyConstraint(
            ["policy_id", "parent"],
            ["versions.policy_id", "versions.version"],
            name=op.f("fk_versions_policy_id_parent_versions"),
        ),
        sa.ForeignKeyConstraint(["policy_id"], ["policies.id"], name=op.f("fk_versions_policy_id_policies")),
        sa.PrimaryKeyConstraint("policy_id", "version", name=op.f("pk_versions")),
    )
    op.create_table(
        "publications",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("policy_id", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("engine", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("reported_version", sa.Text()),
        sa.Column("probe", sa.JSON()),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["policy_id", "version"],
            ["versions.policy_id", "versions.version"],
            name=op.f("fk_publications_policy_id_version_versions"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_publications")),
    )
    op.create_table(
        "samples",
        sa.Column("turn_id", sa.Uuid(), nullable=False),
        sa.Column("batch_id", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("reward", sa.Float(), nullable=False),
        sa.Column("baseline", sa.Float(), nullable=False),
        sa.Column("advantage", sa.Float(), nullable=False),
        sa.Column("staleness", sa.Integer(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("hint_id", sa.BigInteger()),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("fk_samples_batch_id_batches")),
        sa.ForeignKeyConstraint(["hint_id"], ["hints.id"], name=op.f("fk_samples_hint_id_hints")),
        sa.PrimaryKeyConstraint("turn_id", name=op.f("pk_samples")),
        sa.UniqueConstraint("batch_id", "position", name=op.f("uq_samples_batch_id_position")),
    )
    op.create_index(op.f("ix_samples_batch_id"), "samples", ["batch_id"], unique=False)
    op.create_table(
        "steps",
        sa.Column("batch_id", sa.BigInteger(), nullable=False),
        sa.Column("policy_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("checkpoint", sa.Text(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("fk_steps_batch_id_batches")),
        sa.ForeignKeyConstraint(
            ["policy_id", "version"],
            ["versions.policy_id", "versions.version"],
            name=op.f("fk_steps_policy_id_version_versions"),
        ),
        sa.ForeignKeyConstraint(["policy_id"], ["policies.id"], name=op.f("fk_steps_policy_id_policies")),
        sa.PrimaryKeyConstraint("batch_id", name=op.f("pk_steps")),
        sa.UniqueConstraint("policy_id", "version", name=op.f("uq_steps_policy_id_version")),
    )


def drop_tables() -> None:
    op.drop_table("steps")
    op.drop_table("samples")
    op.drop_table("publications")
    op.drop_table("versions")
    op.drop_table("turns")
    op.drop_table("batches")
    op.drop_table("votes")
    op.drop_table("turn_states")
    op.drop_table("spending")
    op.drop_table("set_aside")
    op.drop_table("sessions")
    op.drop_table("scores")
    op.drop_table("processes")
    op.drop_table("policies")
    op.drop_table("orphans")
    op.drop_table("leases")
    op.drop_table("hints")
    op.drop_table("feedback")
    op.drop_table("engines")
    op.drop_table("demonstrations")
    op.drop_table("contents")
    op.drop_table("calls")
