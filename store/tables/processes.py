"""Who is running, and who may do what only one may do."""

from sqlalchemy import BigInteger, Column, Table, Text

from store.tables.base import Json, Timestamp, metadata, now

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
