"""What was said, kept once: pieces of request bodies under the hash of their bytes.

A turn's messages, tools, ids and body in full, as expressions over `turns` or an alias of it; and the
class of task that messages and tools make.

The columns themselves hold only what a turn adds to its base (`dukou/store/bases.py`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, FromClause, LargeBinary, case, func, select, text

from dukou.store import binary
from dukou.store.binary import Int4Array
from dukou.store.tables.base import Json

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
            "tenants": binary.texts([row.tenant for row in rows]),
            "periods": binary.days([row.period for row in rows]),
            "hashes": binary.blobs([row.hash for row in rows]),
            "bodies": binary.blobs([row.body for row in rows]),
            "readable": binary.texts([row.readable for row in rows]),
            "answers": binary.uuids([row.answer_id for row in rows]),
            "places": binary.integers([row.answer_at for row in rows]),
        }
        connection.execute(_INSERT, given)


def _stored(connection: Connection, keys: Iterable[tuple[str, date, bytes]]) -> set[tuple[str, date, bytes]]:
    """Asked before the bodies are sent: most of them were said before."""
    wanted = list(keys)
    given = {
        "tenants": binary.texts([tenant for tenant, _, _ in wanted]),
        "periods": binary.days([period for _, period, _ in wanted]),
        "hashes": binary.blobs([digest for _, _, digest in wanted]),
    }
    return (
        {(row[0], row[1], bytes(row[2])) for row in connection.execute(_STORED, given)} if wanted else set()
    )


def messages(of: FromClause) -> ColumnElement[Any]:
    """The request's messages as JSON; NULL where it had no list of them, or where they are forgotten."""
    return func.turn_messages(of.c.id, type_=Json)


def tools(of: FromClause) -> ColumnElement[Any]:
    return func.turn_tools(of.c.tenant, of.c.period, of.c.tools_hash, type_=Json)


def prompt_ids(of: FromClause) -> ColumnElement[Any]:
    """int32, shape [prompt_tokens]. How many there are is the column `prompt_tokens`."""
    alone = of.c.base_tokens == 0
    return case((alone, of.c.prompt_ids), else_=func.turn_prompt_ids(of.c.id, type_=Int4Array))


def trained_count(of: FromClause) -> ColumnElement[int]:
    """How many tokens of the answer may be trained: all, or those in the spans of `trained_tokens`."""
    edge = func.unnest(of.c.trained_tokens).table_valued("at", with_ordinality="n").render_derived()
    signed = case((edge.c.n % 2 == 0, edge.c.at), else_=-edge.c.at)
    inside = select(func.sum(signed)).select_from(edge).scalar_subquery()
    return case((of.c.trained_tokens.is_(None), func.cardinality(of.c.response_ids)), else_=inside)


def request_body(of: FromClause) -> ColumnElement[bytes | None]:
    """Exactly the client's bytes; NULL where they are forgotten."""
    return func.turn_request_body(of.c.id, type_=LargeBinary)


def task_class(messages: object, tools: object) -> str:
    """The task class of a prompt: `tool_result` | `tools` | `chat`. It never looks at the answer. Pure."""
    last = messages[-1] if isinstance(messages, list) and messages else None
    if isinstance(last, dict) and last.get("role") == "tool":
        return "tool_result"
    return "tools" if tools else "chat"
