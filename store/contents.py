"""What was said, kept once: pieces of request bodies under the hash of their bytes."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from uuid import UUID

from sqlalchemy import Connection, text

from store import wire

# Those of the pieces that are stored: an index look-up per piece, whatever the planner knows of the table.
_STORED = text("""
    select c.tenant, c.period, c.hash
    from unnest(cast(:tenants as text[]), cast(:periods as date[]), cast(:hashes as bytea[]))
        as wanted (tenant, period, hash)
    cross join lateral (
        select tenant, period, hash
        from contents
        where tenant = wanted.tenant and period = wanted.period and hash = wanted.hash
        limit 1
    ) c
""")
# Stores pieces, but for those that another drainer has stored meanwhile.
_INSERT = text("""
    insert into contents (tenant, period, hash, body, readable, answer_id, answer_at)
    select * from unnest(
        cast(:tenants as text[]), cast(:periods as date[]), cast(:hashes as bytea[]),
        cast(:bodies as bytea[]), cast(:readable as text[]), cast(:answers as uuid[]), cast(:places as int4[])
    )
    on conflict do nothing
""")


@dataclass(frozen=True, slots=True)
class Content:
    """A piece as it is stored; where the body lacks an answer, whose it is and where it stood."""

    tenant: str
    period: date
    hash: bytes
    body: bytes
    readable: str | None
    answer_id: UUID | None = None
    answer_at: int | None = None


def keep(connection: Connection, pieces: Iterable[Content]) -> None:
    """Writes those that are not there yet."""
    wanted = {(each.tenant, each.period, each.hash): each for each in pieces}
    # In one order everywhere: two drainers must not wait for each other.
    missing = sorted(wanted.keys() - _stored(connection, wanted.keys()))
    rows = [wanted[key] for key in missing]
    if rows:
        given = {
            "tenants": wire.texts([row.tenant for row in rows]),
            "periods": wire.days([row.period for row in rows]),
            "hashes": wire.blobs([row.hash for row in rows]),
            "bodies": wire.blobs([row.body for row in rows]),
            "readable": wire.texts([row.readable for row in rows]),
            "answers": wire.uuids([row.answer_id for row in rows]),
            "places": wire.integers([row.answer_at for row in rows]),
        }
        connection.execute(_INSERT, given)


def _stored(connection: Connection, keys: Iterable[tuple[str, date, bytes]]) -> set[tuple[str, date, bytes]]:
    """Asked before the bodies are sent: most of them were said before."""
    wanted = list(keys)
    given = {
        "tenants": wire.texts([tenant for tenant, _, _ in wanted]),
        "periods": wire.days([period for _, period, _ in wanted]),
        "hashes": wire.blobs([digest for _, _, digest in wanted]),
    }
    return (
        {(row[0], row[1], bytes(row[2])) for row in connection.execute(_STORED, given)} if wanted else set()
    )
