"""`python -m gateway aside`: lists records that could not become turns; `--again` drains them again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from sqlalchemy import Connection, Engine

from dukou.settings.model import Config
from dukou.store import policies, set_aside
from dukou.store.set_aside import SetAside
from gateway.drain import faults, feedback
from gateway.drain.assemble import assemble
from gateway.drain.process import connect
from gateway.drain.write import record
from gateway.spool import format as spool
from gateway.spool.format import Kind, Record


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one entry: `error` None: it is drained."""

    id: UUID
    error: str | None


def show(config: Config, *, again: bool) -> int:
    """Prints the list, or what became of each entry; the exit status is 1 where one failed again."""
    database = connect(config)
    try:
        if not again:
            with database.connect() as connection:
                print("\n".join(lines_of(set_aside.listed(connection))))
            return 0
        results = drain_again(database, config)
    finally:
        database.dispose()
    failed = [result for result in results if result.error is not None]
    print(f"{len(results) - len(failed)} of {len(results)} drained")
    for result in failed:
        print(f"{result.id}  still set aside: {result.error}")
    return 1 if failed else 0


def lines_of(entries: Sequence[SetAside]) -> Iterator[str]:
    """The list as text, a line per entry. Pure."""
    if not entries:
        yield "nothing is set aside"
        return
    for entry in entries:
        shown = "row" if entry.has_row else "no row"
        said = entry.error.partition("\n")[0]
        yield f"{entry.id}  {entry.created_at:%Y-%m-%d %H:%M:%S}  {entry.size:>9} bytes  {shown:<6}  {said}"
    yield f"{len(entries)} set aside. To drain them again: python -m gateway aside --again"


def drain_again(database: Engine, config: Config) -> list[Result]:
    """Makes turns and feedback of what is set aside, each entry in a transaction of its own.

    Raises:
        SQLAlchemyError: Postgres is away; what was drained so far stays drained.
    """
    with database.begin() as connection:
        policy_id = policies.default(connection, config).id
        entries = set_aside.listed(connection)
    return [_again(database, entry.id, policy_id, config) for entry in entries]


def _again(database: Engine, turn_id: UUID, policy_id: int, config: Config) -> Result:
    try:
        with database.begin() as connection:
            kept = set_aside.take(connection, turn_id)
            if kept is not None:
                _drain(connection, kept, policy_id, config)
    except Exception as error:  # whatever one record holds, it must not stop the others
        if faults.fault_of(error) is faults.Fault.SERVICE:
            raise
        said = faults.words_of(error)
        with database.begin() as connection:
            set_aside.replace_error(connection, turn_id, said)
        return Result(turn_id, said)
    return Result(turn_id, None)


def _drain(connection: Connection, kept: bytes, policy_id: int, config: Config) -> None:
    """Raises whatever the records hold that cannot be read."""
    records = {found.kind: found for found in records_of(kept)}
    if Kind.FEEDBACK in records:
        feedback.write(connection, [feedback.read(records[Kind.FEEDBACK])])
        return
    draft = assemble(records[Kind.REQUEST], records.get(Kind.REPLY), policy_id, config.privacy.store_false)
    set_aside.remove_unreadable(connection, draft.request.id)
    if not draft.unrecorded:
        max_turns = config.session.max_turns
        record(connection, [draft], lambda _: False, max_turns=max_turns, now=datetime.now(UTC))


def records_of(kept: bytes) -> Iterator[Record]:
    """The records in these bytes, one after the other.

    Raises:
        CorruptRecordError: other bytes are among them, or the last one has no end.
    """
    offset = 0
    while offset < len(kept):
        found = spool.decode(kept, offset)
        if found is None:
            raise spool.CorruptRecordError(f"the record at byte {offset} has no end")
        yield found[0]
        offset = found[1]
