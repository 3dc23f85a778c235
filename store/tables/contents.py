"""What was said, once: messages, tool lists and the rest of request bodies under the hash of their bytes.

A row is shared by every turn of its tenant and period that has these bytes. The period is the first day of
the partition that the turns lie in, so that dropping an old partition never takes text from a younger one.
"""

from sqlalchemy import Column, Date, Integer, LargeBinary, Table, Text, Uuid

from store.tables.base import metadata

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
