"""Turns that were written before the turn that they go on from."""

from sqlalchemy import Boolean, Column, Index, Integer, LargeBinary, Table, Text, Uuid

from store.tables.base import metadata

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
