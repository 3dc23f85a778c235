"""Bytes in Postgres for an agent session of 100,000 tokens of context, beside the same stored whole per turn.

Dukou's side goes the drainer's way: spool records, fold, lineage, rows. The other side is the layout of a
request log: a row a turn with all its messages as JSONB and all its ids as int4[] (which is kinder to it than
ids in JSONB, shown too). Sizes are what tables, indexes and TOAST grow by when they hold another such session
already.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from sqlalchemy import Connection, Engine, text

from bench.postgres import scratch
from bench.storage_session import START, Session
from dukou.store import binary, partitions
from gateway.drain.assemble import assemble
from gateway.drain.write import record
from gateway.spool.format import Record

_SIZE = text(
    "select sum(pg_total_relation_size(c.oid)) from pg_class c join pg_namespace n on n.oid = c.relnamespace"
    " where n.nspname = 'public' and c.relkind = 'r' and (c.relname ~ '^whole_') = :whole"
)
_WHOLE = """
create table whole_array (id uuid primary key, messages jsonb, response jsonb, prompt_ids int4[],
                          response_ids int4[], response_logprobs float4[]);
create table whole_jsonb (id uuid primary key, messages jsonb, response jsonb, ids jsonb)
"""


@dataclass(frozen=True, slots=True)
class Sizes:
    turns: int
    distinct: int
    dukou: int
    whole: int
    whole_jsonb: int


def measure(turns: int) -> Sizes:
    """Both layouts of one session, in one database."""
    session = Session(seed=1)
    with scratch() as engine:
        with engine.begin() as connection:
            partitions.make_ahead(connection, datetime.fromtimestamp(START, UTC), "month")
            connection.exec_driver_sql(_WHOLE)
        _write(engine, Session(seed=2), turns)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("vacuum analyze")  # as autovacuum does, sooner or later
        before = _size(engine)
        _write(engine, session, turns)
        _check(engine, session)
        after = _size(engine)
    grown = [full - had for full, had in zip(after, before, strict=True)]
    return Sizes(turns, session.distinct_bytes, *grown)


def _write(engine: Engine, session: Session, turns: int) -> None:
    for request, reply in session.turns(turns):
        with engine.begin() as connection:
            draft = assemble(request, reply, None)
            record(connection, [draft], lambda _: False, max_turns=10**6, now=datetime.now(UTC))
            _write_whole(connection, request, reply)


def _write_whole(connection: Connection, request: Record, reply: Record) -> None:
    messages = json.dumps(json.loads(request.body)["messages"])
    choice = json.loads(reply.body)["choices"][0]
    logprobs = [one[0] for one in choice["meta_info"]["output_token_logprobs"]]
    given = {"id": request.meta["id"], "messages": messages, "response": json.dumps(choice["message"])}
    connection.exec_driver_sql(
        "insert into whole_array values (%(id)s, %(messages)s, %(response)s, %(prompt)s, %(ids)s, %(said)s)",
        {
            **given,
            "prompt": binary.encode_ids(choice["prompt_token_ids"]),
            "ids": binary.encode_ids(choice["response_token_ids"]),
            "said": binary.encode_logprobs(logprobs),
        },
    )
    ids = {
        "prompt": choice["prompt_token_ids"],
        "response": choice["response_token_ids"],
        "logprobs": logprobs,
    }
    connection.exec_driver_sql(
        "insert into whole_jsonb values (%(id)s, %(messages)s, %(response)s, %(ids)s)",
        {**given, "ids": json.dumps(ids)},
    )


def _check(engine: Engine, session: Session) -> None:
    """What is small must still be whole: the last turn, read through the view."""
    with engine.connect() as connection:
        messages, ids, answer = connection.execute(
            text(
                "select messages, prompt_ids, response_ids from turn where session_id = :session"
                " order by started_at desc limit 1"
            ),
            {"session": session.id},
        ).one()
    given = np.concatenate([ids, answer]).tolist()
    if messages != session.messages[:-1] or given != session.prompt:
        raise SystemExit("the last turn does not read back as it was")


def _size(engine: Engine) -> tuple[int, int, int]:
    with engine.connect() as connection:
        dukou = connection.scalar(_SIZE, {"whole": False})
        names = ("whole_array", "whole_jsonb")
        whole = [connection.scalar(text(f"select pg_total_relation_size('{name}')")) for name in names]
    return int(dukou), int(whole[0]), int(whole[1])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.storage", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one line of JSON last")
    parser.add_argument("--turns", type=int, nargs="*", default=[50, 100, 200], help="lengths of the session")
    asked = parser.parse_args()
    print(
        f"{'turns':>6}{'distinct':>12}{'dukou':>12}{'whole':>14}{'whole, ids in jsonb':>22}", file=sys.stderr
    )
    found: dict[int, Sizes] = {}
    for turns in asked.turns:
        sizes = found[turns] = measure(turns)
        row = f"{turns:>6}{sizes.distinct:>12,}{sizes.dukou:>12,}{sizes.whole:>14,}{sizes.whole_jsonb:>22,}"
        print(row, file=sys.stderr)
    last = found[max(found)]
    if asked.json:
        growth = {
            str(turns): {
                "vs_distinct": _ratio(one.dukou, one.distinct),
                "whole_vs_dukou": _ratio(one.whole, one.dukou),
            }
            for turns, one in found.items()
        }
        print(
            json.dumps(
                {
                    "vs_distinct": _ratio(last.dukou, last.distinct),
                    f"whole_vs_dukou_at_{last.turns}": _ratio(last.whole, last.dukou),
                    f"whole_jsonb_vs_dukou_at_{last.turns}": _ratio(last.whole_jsonb, last.dukou),
                    "by_turns": growth,
                }
            )
        )


def _ratio(one: int, other: int) -> float:
    return round(one / other, 2)


if __name__ == "__main__":
    main()
