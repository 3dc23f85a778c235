"""A turn's messages, tools, ids and body in full, as expressions over `turns` or an alias of it; and the
class of task that messages and tools make.

The columns themselves hold only what a turn adds to its base (`store/bases.py`).
"""

from typing import Any

from sqlalchemy import ColumnElement, FromClause, LargeBinary, case, func, select

from store.arrays import Int4Array
from store.tables.base import Json


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
