"""Hints, batches, their samples, and the steps that trained them."""

from sqlalchemy import (
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
    UniqueConstraint,
    Uuid,
)

from dukou.store.binary import Int4Array
from dukou.store.tables.base import Json, metadata, now

#: What the answer should have been told, in hindsight. Rows are added, never changed: a batch names its own.
hints = Table(
    "hints",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("turn_id", Uuid, nullable=False, index=True),
    Column("text", Text, nullable=False),
    Column("prompt_ids", Int4Array, nullable=False),  # the turn's prompt with the hint in it
    now("created_at"),
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
    Column("detail", Text),  # the reason with its numbers, for people
    now("created_at"),
    CheckConstraint("status in ('closed', 'trained', 'skipped')", name="status"),
)

samples = Table(
    "samples",
    metadata,
    Column("turn_id", Uuid, primary_key=True),  # in one batch, ever
    Column("batch_id", BigInteger, ForeignKey("batches.id"), nullable=False, index=True),
    Column("position", Integer, nullable=False),  # order inside the batch
    Column("reward", Float, nullable=False),
    Column("baseline", Float, nullable=False),
    Column("advantage", Float, nullable=False),
    Column("staleness", Integer, nullable=False),
    Column("task", Text, nullable=False),  # chat | tools | tool_result
    Column("hint_id", BigInteger, ForeignKey("hints.id")),  # NULL: no teacher scored it
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
    now("created_at"),
    ForeignKeyConstraint(["policy_id", "version"], ["versions.policy_id", "versions.version"]),
    UniqueConstraint("policy_id", "version"),
)
