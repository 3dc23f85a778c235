"""Places drafts among the turns that are recorded already, and writes them, in the caller's transaction."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection

from dukou.store import earlier, sessions, turns
from dukou.store.earlier import Earlier, InSession, Key, Orphan
from dukou.store.turn_rows import Place, TurnRow
from gateway.drain.assemble import Draft
from gateway.drain.relink import orphan_of, relink
from gateway.lineage import canonical
from gateway.lineage import place as lineage
from gateway.lineage.place import EarlierTurns, TurnRequest

_NEAREST = 4  # prefixes that are looked up at first: nearly always the parent is the longest


@dataclass(frozen=True, slots=True)
class Outcome:
    written: tuple[Draft, ...]
    waiting: tuple[Draft, ...]  # what they should be placed by may still come


def record(
    connection: Connection,
    drafts: Sequence[Draft],
    may_wait: Callable[[Draft], bool],
    *,
    max_turns: int,
    now: datetime,
) -> Outcome:
    """Writes turns, their states and sessions; drafts that are recorded already are left as they are.

    Args:
        may_wait: whether a draft without its parent is put off; otherwise it begins a session.
        max_turns: main turns after which a session goes on in a new segment.
    """
    there = turns.recorded(connection, [draft.request.id for draft in drafts])
    ordered = sorted(
        (draft for draft in drafts if draft.request.id not in there),
        key=lambda draft: (draft.request.started_at, draft.request.id),
    )
    batch = _Batch(connection, ordered)
    waiting = tuple(draft for draft in ordered if not batch.put(draft, may_wait))
    batch.write(max_turns, now)
    late = {draft.request.id for draft in waiting}
    return Outcome(tuple(draft for draft in drafts if draft.request.id not in late), waiting)


class _Batch:
    """Drafts on their way to rows; each one placed is known to those after it."""

    def __init__(self, connection: Connection, drafts: Sequence[Draft]) -> None:
        self._connection = connection
        self._known = _lookup(connection, drafts)
        self._placed: list[tuple[Draft, Place]] = []
        self._abandoned: list[UUID] = []
        self._orphans: list[Orphan] = []
        self._of_key: dict[tuple[str, str | None], list[Earlier]] = {}

    def put(self, draft: Draft, may_wait: Callable[[Draft], bool]) -> bool:
        """Whether the draft has found its place; False puts it off."""
        request = draft.request
        found = lineage.place(request, self._known)
        if lineage.misses_something(request, self._known) and may_wait(draft):
            return False
        if lineage.misses_parent(request, self._known):
            self._orphans.append(orphan_of(draft))
        if found.session_source == "new" and request.kind == "main":
            found = lineage.continues_summary(request, self._summaries(request)) or found
        draft = self._settle_retry(draft, found)
        self._placed.append((draft, found))
        for row in draft.rows:
            self._known.add(Earlier.of(row, found))
            if row.kind_reason == "summary":
                self._summaries(request).insert(0, Earlier.of(row, found))
        return True

    def write(self, max_turns: int, now: datetime) -> None:
        rows = list(self._with_ordinals(max_turns))
        turns.insert_turns(self._connection, rows)
        turns.abandon(self._connection, self._abandoned)
        turns.followed(self._connection, self._followed())
        sessions.touch(self._connection, [_touch(draft, where) for draft, where in self._placed])
        ended = {
            (draft.request.tenant, where.session_id) for draft, where in self._placed if draft.session_done
        }
        sessions.close(self._connection, ended, now)
        earlier.keep(self._connection, self._orphans)
        relink(self._connection, [what for what, _ in rows])

    def _summaries(self, request: TurnRequest) -> list[Earlier]:
        """The summaries made for this key, newest first; read once a batch."""
        key = (request.tenant, request.key_id)
        if key not in self._of_key:
            self._of_key[key] = earlier.summaries(self._connection, *key)
        return self._of_key[key]

    def _settle_retry(self, draft: Draft, found: Place) -> Draft:
        """Of two attempts one is trained: the one that the client went on from, else the later."""
        for lost in self._known.by_id(found.retry_of):
            if self._known.is_continued(lost.id):
                rows = tuple(
                    replace(row, untrainable_reason=row.untrainable_reason or "retry") for row in draft.rows
                )
                return replace(draft, rows=rows)
            same = self._known.by_prompt(lost.prompt_hash)
            self._abandoned += [turn.id for turn in same if turn.request_id == lost.request_id]
        return draft

    def _followed(self) -> dict[UUID, UUID]:
        """Parent → the first main turn that brings messages after its answer."""
        first: dict[UUID, UUID] = {}
        for draft, where in self._placed:
            brings_more = where.parent_messages is not None and where.parent_messages < draft.message_count
            if where.parent_id is not None and draft.request.kind == "main" and brings_more:
                first.setdefault(where.parent_id, draft.request.id)
        return first

    def _with_ordinals(self, max_turns: int) -> Iterable[tuple[TurnRow, Place]]:
        """The rows with their positions; every `max_turns` main turns a new segment begins."""
        old = [
            (draft.request.tenant, where.session_id)
            for draft, where in self._placed
            if where.session_source != "new"
        ]
        following: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        last = earlier.last_ordinals(self._connection, old) if old else {}
        following.update({key: ordinal + 1 for key, ordinal in last.items()})
        went_on: dict[tuple[str, UUID], UUID] = {}  # (session, segment) → the one that follows it
        for draft, where in self._placed:
            key = (draft.request.tenant, where.session_id, draft.request.kind)
            segment = (where.session_id, where.segment_id)
            if draft.request.kind == "main" and following[key] and following[key] % max_turns == 0:
                went_on[segment] = draft.request.id
            for row in draft.rows:
                here = went_on.get(segment, where.segment_id)
                yield row, where.at(following[key], here)
                following[key] += 1


def _lookup(connection: Connection, drafts: Sequence[Draft]) -> EarlierTurns:
    """What is recorded that any of the drafts may belong to."""
    every = [draft.request for draft in drafts]
    histories, prompts = set[Key](), set[Key]()
    for request in every:
        nearest = request.prefixes[:_NEAREST]
        histories |= _keys(request, [prefix.history for prefix in nearest])
        prompts |= _keys(request, [prefix.prompt for prefix in nearest])
        if request.prompt_hash is not None:
            prompts |= _keys(request, [request.prompt_hash])
    named = {(request.tenant, request.parent_id) for request in every if request.parent_id is not None}
    found = earlier.find(connection, histories=histories, prompts=prompts, ids=named)
    known = EarlierTurns(canonical.renewed(found, _former(every)))
    here = {row.history_hash for draft in drafts for row in draft.rows}
    lost = [
        request
        for request in every
        if lineage.misses_parent(request, known)
        and not (request.prefixes and request.prefixes[0].history in here)
    ]
    exchanges = {each.digest: each.former for request in lost for each in request.exchanges if each.former}
    for turn in canonical.renewed(_further(connection, lost), {**_former(every), **exchanges}):
        known.add(turn)
    return known


def _further(connection: Connection, lost: Sequence[TurnRequest]) -> Iterable[Earlier]:
    """A second look, for those whose last answer's turn was not among the nearest."""
    histories, exchanges = set[Key](), set[Key]()
    for request in lost:
        histories |= _keys(request, [prefix.history for prefix in request.prefixes[_NEAREST:]])
        for exchange in request.exchanges:
            exchanges |= {(request.tenant, one) for one in (exchange.digest, exchange.former) if one}
    if histories or exchanges:
        yield from earlier.find(connection, histories=histories, exchanges=exchanges)
    in_session = [
        InSession(request.tenant, request.session[0], history, prompt)
        for request in lost
        if request.session is not None and request.prefixes
        for history, prompt in _spellings(request)
    ]
    yield from earlier.in_sessions(connection, in_session)


def _keys(request: TurnRequest, digests: Iterable[bytes]) -> set[Key]:
    """What to look for: the digests, and those that older rows have in their place."""
    both = [one for digest in digests for one in (digest, request.former.get(digest))]
    return {(request.tenant, one) for one in both if one is not None}


def _spellings(request: TurnRequest) -> Iterable[tuple[bytes, bytes]]:
    """History and prompt of the last answer, as they are and as older rows have them."""
    history, prompt = request.prefixes[0].history, request.prefixes[0].prompt
    then = request.former.get(history, history), request.former.get(prompt, prompt)
    return dict.fromkeys(((history, prompt), then))


def _former(every: Iterable[TurnRequest]) -> dict[bytes, bytes]:
    return {now: then for request in every for now, then in request.former.items()}


def _touch(draft: Draft, where: Place) -> sessions.Touch:
    request = draft.request
    return sessions.Touch(
        request.tenant, where.session_id, request.key_id, where.session_source, request.started_at
    )
