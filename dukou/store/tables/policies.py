"""What learns, its versions, and the engines that serve them.

Who is running, and who may do what only one may do.
"""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Integer,
    Table,
    Text,
)

from dukou.store.tables.base import Json, Timestamp, metadata, now

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
    Column("pinned_at", Timestamp),  # nothing automatic moves the pointer since; NULL: not pinned
    # A version that a share of the sessions gets beside the live one; NULL: none.
    Column("trial_version", Integer),
    Column("trial_share", Float),
    Column("trial_at", Timestamp),
    now("created_at"),
    CheckConstraint("scope in ('global', 'tenant', 'user')", name="scope"),
    CheckConstraint("num_nonnulls(trial_version, trial_share, trial_at) in (0, 3)", name="trial_is_whole"),
    CheckConstraint("trial_share > 0 and trial_share < 1", name="trial_share"),
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
    now("created_at"),
    Column("live_at", Timestamp),
    ForeignKeyConstraint(["policy_id", "parent"], ["versions.policy_id", "versions.version"]),
    CheckConstraint("form in ('full', 'adapter')", name="form"),
    CheckConstraint("status in ('written', 'live', 'retired', 'refused')", name="status"),
    CheckConstraint("version >= 0 and (parent is null) = (version = 0)", name="tree"),
)

engines = Table(
    "engines",
    metadata,
    Column("url", Text, primary_key=True),
    Column("state", Text, nullable=False),  # ready | starting | paused | updating | dead
    Column("reason", Text),
    Column("version", Integer),  # what it serves, as verified; NULL: unknown
    Column("dialect", Text),  # sglang | vllm | plain
    Column("beside", ARRAY(Text), nullable=False, server_default="{}"),  # adapters that some sessions get
    now("seen_at"),
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
    now("created_at"),
    ForeignKeyConstraint(["policy_id", "version"], ["versions.policy_id", "versions.version"]),
)


processes = Table(
    "processes",
    metadata,
    Column("name", Text, primary_key=True),  # "learner", "drainer", "reconciler"
    Column("doing", Text, nullable=False),
    Column("waits_for", Text),  # the sentence that `learner status` repeats
    Column("detail", Json),
    now("started_at"),
    now("beat_at"),
)

leases = Table(
    "leases",
    metadata,
    Column("name", Text, primary_key=True),  # "trainer:<policy>", "reconciler:<engine>"
    Column("owner", Text, nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("until", Timestamp, nullable=False),
)
