"""Repairs lineage when a parent is written after its child: another gateway lagged, or a drainer was away."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Connection

from dukou.store import earlier, turns
from dukou.store.earlier import Earlier, Orphan
from dukou.store.turn_rows import TurnRow
from gateway.drain.assemble import Draft
from gateway.lineage import canonical
from gateway.lineage.place import is_kept_part

PATIENCE = timedelta(days=7)  # for which a parent may still come
YOUNG = timedelta(minutes=2)
SWEPT = 200  # orphans that one sweep looks at


def orphan_of(draft: Draft) -> Orphan:
    """What to look for, of a turn that was placed without its parent."""
    request = draft.request
    longest = request.prefixes[0] if request.prefixes else None
    return Orphan(
        turn_id=request.id,
        tenant=request.tenant,
        history_hash=longest.history if longest is not None else None,
        prompt_hash=longest.prompt if longest is not None else None,
        parent_id=request.parent_id,
        messages=longest.messages if longest is not None else None,
        brings_more=longest is None or longest.messages < draft.message_count,
        names_session=request.session is not None,
    )


def relink(connection: Connection, written: Sequence[TurnRow]) -> None:
    """These turns are written: whoever waited for one of them is put below it."""
    prompts = {row.prompt_hash for row in written if row.prompt_hash is not None}
    waiting = earlier.missing(
        connection, {row.tenant for row in written}, prompts, [row.id for row in written]
    )
    repair(connection, waiting)


def repair(connection: Connection, waiting: Sequence[Orphan]) -> int:
    """Puts each of these turns below its parent, where that is there by now; how many."""
    repaired = 0
    for orphan in waiting:
        # One by one: each may move the session that the next one is looked for in.
        found = _look(connection, orphan)
        if found is None:
            continue
        child, parent = found
        earlier.adopt(connection, orphan, child, parent)
        if child.kind == "main" and orphan.brings_more:
            turns.followed(connection, {parent.id: orphan.turn_id})
        repaired += 1
    return repaired


def sweep(connection: Connection, now: datetime) -> None:
    """A second look at new orphans, for two drainers may have written parent and child at the same moment."""
    repair(connection, earlier.newest_since(connection, _first_id(now - YOUNG), SWEPT))
    earlier.give_up_before(connection, _first_id(now - PATIENCE))


def _first_id(moment: datetime) -> UUID:
    """The lowest UUIDv7 of a moment."""
    return UUID(int=int(moment.timestamp() * 1000) << 80)


def _look(connection: Connection, orphan: Orphan) -> tuple[Earlier, Earlier] | None:
    """The turn itself, and its parent."""
    tenant = orphan.tenant
    ids = [(tenant, one) for one in (orphan.turn_id, orphan.parent_id) if one is not None]
    prompts = [(tenant, orphan.prompt_hash)] if orphan.prompt_hash is not None else []
    known = earlier.find(connection, prompts=prompts, ids=ids)
    child = next((turn for turn in known if turn.id == orphan.turn_id), None)
    if child is None:
        return None
    possible = [turn for turn in known if _may_be_parent(connection, orphan, child, turn)]
    best = max(possible, key=lambda turn: (turn.kind == "main", turn.started_at, turn.id), default=None)
    return None if best is None else (child, best)


def _may_be_parent(connection: Connection, orphan: Orphan, child: Earlier, turn: Earlier) -> bool:
    of_same_owner = (
        turn.request_id != child.request_id
        and turn.key_id == child.key_id
        and turn.user_name == child.user_name
        and turn.started_at < child.started_at
        and (not orphan.names_session or turn.session_id == child.session_id)
    )
    if not of_same_owner:
        return False
    if orphan.parent_id is not None:
        return turn.id == orphan.parent_id
    if turn.history_hash == orphan.history_hash:
        return True
    return turn.status != "ok" and is_kept_part(turn, _last_answer(connection, orphan))


def _last_answer(connection: Connection, orphan: Orphan) -> str:
    """The canonical text of the last answer in the request."""
    messages = earlier.messages_of(connection, orphan.turn_id)
    if orphan.messages is None or not isinstance(messages, list) or len(messages) < orphan.messages:
        return ""
    return canonical.text(messages[orphan.messages - 1])
