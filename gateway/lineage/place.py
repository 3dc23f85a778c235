"""Where a turn belongs: its session, its segment and its parent. Pure decisions over values.

The parent is the earlier turn, of the same key, whose messages and answer are the longest beginning of this
request's messages (gateway/lineage/canonical.py says when messages are equal). An explicit session id
decides the session and confines the search to it. Where the beginning was dropped or changes from turn to
turn, what the request ends with decides (gateway/lineage/place.py).

A request whose messages equal an earlier one's is one of three things:
* a retry, where the client says so: the earlier attempt was lost on its way;
* a regeneration, where the earlier one was over before this began, and nobody went on from it: a sibling;
* one of a group, where they overlap in time: each is a session of its own.

The parent of a request whose beginning is not what was answered before. Pure.

Clients cut the oldest messages (a sliding window), put a summary in their place, or change the system
message with every request. Then no earlier history is a beginning of the request; but its last answer, with
the message before it, is an exchange that some turn ended with. That turn is the parent where the exchanges
before it agree with the turns before it, and where all such turns are of one session: two conversations that
read alike are never joined.

Earlier turns by what they can be found by. Pure.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any, Protocol
from uuid import UUID

from dukou.store.earlier import Earlier
from dukou.store.turn_rows import Place
from dukou.store.visible import begins
from gateway.lineage import canonical

LONGEST_WALK = 8  # exchanges that are compared at most
SHORTEST_ALONE = 24  # characters of a single exchange; shorter ones occur in many conversations


@dataclass(frozen=True, slots=True)
class Exchange:
    """An answer among a request's messages, with the message before it."""

    messages: int  # of the request, up to the answer and with it
    digest: bytes
    characters: int
    former: bytes | None = None  # gateway/lineage/canonical.py


def exchanges_of(root: bytes, messages: Sequence[Any]) -> tuple[Exchange, ...]:
    """The answers among a request's messages, each with what it answered; LONGEST_WALK at most."""
    found: list[Exchange] = []
    for index in range(len(messages) - 1, 0, -1):
        message = messages[index]
        if not isinstance(message, dict) or message.get("role") != "assistant":
            continue
        before, answer = canonical.form(messages[index - 1]), canonical.form(message)
        digest = canonical.exchange(root, before, answer)
        if digest is not None:
            characters = len(before.text) + len(answer.text)
            then = canonical.of_exchange(root, before, answer)
            found.append(Exchange(index + 1, digest, characters, then))
        if len(found) == LONGEST_WALK:
            break
    return tuple(found)


class Turns(Protocol):
    """The turns that are known."""

    def by_id(self, turn_id: UUID | None) -> list[Earlier]: ...
    def by_exchange(self, digest: bytes) -> list[Earlier]: ...


def by_window(
    exchanges: Sequence[Exchange], known: Turns, may_follow: Callable[[Earlier], bool]
) -> tuple[Earlier, int] | None:
    """The parent and how many of the request's messages it covers.

    Args:
        exchanges: of the request, newest first.
    """
    if not exchanges or (len(exchanges) == 1 and exchanges[0].characters < SHORTEST_ALONE):
        return None
    newest, *older = exchanges
    possible = [
        turn
        for turn in known.by_exchange(newest.digest)
        if turn.kind == "main" and may_follow(turn) and _agrees(turn, older, known)
    ]
    if len({turn.session_id for turn in possible}) != 1:
        return None
    return max(possible, key=lambda turn: (turn.started_at, turn.id)), newest.messages


def _agrees(turn: Earlier, older: Sequence[Exchange], known: Turns) -> bool:
    """Whether the turns before it ended with the exchanges before the newest one."""
    for exchange in older:
        if turn.parent_id is None:  # what came before its first recorded turn nobody knows
            return True
        before = known.by_id(turn.parent_id)
        if not before or before[0].exchange_hash != exchange.digest:
            return False
        turn = before[0]
    return True


class EarlierTurns:
    """Earlier turns by their digests; turns of the same batch are added as they are placed."""

    def __init__(self, turns: Iterable[Earlier]) -> None:
        self._by_id: dict[UUID, Earlier] = {}
        self._by_history: dict[bytes, dict[UUID, Earlier]] = {}
        self._by_prompt: dict[bytes, dict[UUID, Earlier]] = {}
        self._by_exchange: dict[bytes, dict[UUID, Earlier]] = {}
        self._continued: set[UUID] = set()
        for turn in turns:
            self.add(turn)

    def add(self, turn: Earlier) -> None:
        self._by_id[turn.id] = turn
        if turn.history_hash is not None:
            self._by_history.setdefault(turn.history_hash, {})[turn.id] = turn
        if turn.prompt_hash is not None:
            self._by_prompt.setdefault(turn.prompt_hash, {})[turn.id] = turn
        if turn.exchange_hash is not None:
            self._by_exchange.setdefault(turn.exchange_hash, {})[turn.id] = turn
        if turn.continued:
            self._continued.add(turn.id)
        if turn.parent_id is not None and turn.kind == "main":
            self._continued.add(turn.parent_id)

    def by_id(self, turn_id: UUID | None) -> list[Earlier]:
        return [self._by_id[turn_id]] if turn_id in self._by_id and turn_id is not None else []

    def by_history(self, digest: bytes) -> list[Earlier]:
        return list(self._by_history.get(digest, {}).values())

    def by_prompt(self, digest: bytes | None) -> list[Earlier]:
        return list(self._by_prompt.get(digest, {}).values()) if digest is not None else []

    def by_exchange(self, digest: bytes) -> list[Earlier]:
        return list(self._by_exchange.get(digest, {}).values())

    def is_continued(self, turn_id: UUID) -> bool:
        return turn_id in self._continued


RETRY_WINDOW = timedelta(minutes=30)  # three attempts of the client's default patience
EDIT_WINDOW = timedelta(hours=2)  # from an answer to the request that brings it back edited
SHORTEST_SUMMARY = 24  # characters; shorter texts occur in messages by chance


@dataclass(frozen=True, slots=True)
class Prefix:
    """The beginning of a request's messages up to an assistant's message."""

    messages: int  # how many, the assistant's included
    history: bytes
    prompt: bytes  # the digest without the assistant's message
    text: str  # canonical text of the assistant's message


@dataclass(frozen=True, kw_only=True)
class TurnRequest:
    """What a request says about where it belongs."""

    id: UUID
    tenant: str
    key_id: str | None
    user_name: str | None = None
    started_at: datetime
    kind: str
    session: tuple[str, str] | None = None  # id and where it was found
    parent_id: UUID | None = None  # the client names it
    prefixes: tuple[Prefix, ...] = ()  # longest first
    messages: Sequence[Any] = ()
    prompt_hash: bytes | None = None
    attempt: int = 0  # the client's retry count; 0: the first
    idempotency_key: str | None = None
    openings: tuple[str, ...] = ()  # texts of the first messages, where a summary would stand
    former: Mapping[bytes, bytes] = field(default_factory=dict)  # digest → the one that older rows have

    @cached_property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The newest ones first; only computed where the last answer's turn is not found."""
        return exchanges_of(canonical.root(self.tenant, self.key_id), self.messages)


@dataclass(frozen=True, slots=True)
class ParentMatch:
    """A parent, and how many of the request's messages it covers; None: the client named it."""

    turn: Earlier
    messages: int | None


def place(request: TurnRequest, known: EarlierTurns) -> Place:
    """Where the request belongs, but for its ordinal and for a summary that it may go on from."""
    lost = _lost_attempt(request, known)
    if lost is not None:
        return _beside(request, lost, retry_of=lost.id)
    parent = find_parent(request, known)
    if parent is None or _is_shorter(request, parent):
        rolled = by_window(request.exchanges, known, partial(may_follow, request))
        if rolled is not None:
            return _rolled(request, *rolled)
    if parent is not None:
        return _below(request, parent)
    sibling = _sibling(request, known)
    if sibling is not None:
        return _beside(request, sibling)
    edited = _edited(request, known)
    return _new(request) if edited is None else _apart(request, edited)


def find_parent(request: TurnRequest, known: EarlierTurns) -> ParentMatch | None:
    """The turn that this request goes on from."""
    matched = next(
        (found for prefix in request.prefixes if (found := _match(request, prefix, known)) is not None), None
    )
    named = [turn for turn in known.by_id(request.parent_id) if turn.key_id == request.key_id]
    if named and (matched is None or matched.turn.id != named[0].id):
        return ParentMatch(named[0], _covered_by(request, named[0]))
    return matched


def continues_summary(request: TurnRequest, summaries: Iterable[Earlier]) -> Place | None:
    """A fresh conversation that opens with the summary of an earlier one is a new segment of that session."""
    for summary in summaries:
        words = _answer_text(summary)
        is_quoted = len(words) >= SHORTEST_SUMMARY and any(words in opening for opening in request.openings)
        if is_quoted and may_follow(request, summary):
            return Place(session_id=summary.session_id, session_source="lineage", segment_id=request.id)
    return None


def misses_something(request: TurnRequest, known: EarlierTurns) -> bool:
    """Whether a turn that this one should have been placed by may still be on its way here."""
    if request.attempt > 0:
        return _lost_attempt(request, known) is None
    return misses_parent(request, known)


def misses_parent(request: TurnRequest, known: EarlierTurns) -> bool:
    """Whether the turn that gave the last answer in this request, or that it names, is not there."""
    if request.parent_id is not None:
        return not any(turn.key_id == request.key_id for turn in known.by_id(request.parent_id))
    return bool(request.prefixes) and _match(request, request.prefixes[0], known) is None


def _is_shorter(request: TurnRequest, parent: ParentMatch) -> bool:
    """Whether the request holds answers that the parent does not know."""
    named = parent.turn.id == request.parent_id
    return not named and bool(request.prefixes) and parent.messages != request.prefixes[0].messages


def _match(request: TurnRequest, prefix: Prefix, known: EarlierTurns) -> ParentMatch | None:
    whole = _best(request, known.by_history(prefix.history))
    if whole is not None:
        return ParentMatch(whole, prefix.messages)
    cut = _best(request, known.by_prompt(prefix.prompt), lambda turn: is_kept_part(turn, prefix.text))
    return ParentMatch(cut, prefix.messages) if cut is not None else None


def _best(
    request: TurnRequest, turns: Iterable[Earlier], accepts: Callable[[Earlier], bool] = lambda turn: True
) -> Earlier | None:
    """A main turn before a side one, then the newest."""
    possible = [turn for turn in turns if may_follow(request, turn) and accepts(turn)]
    return max(possible, key=lambda turn: (turn.kind == "main", turn.started_at, turn.id), default=None)


def may_follow(request: TurnRequest, turn: Earlier) -> bool:
    """Whether a turn is of the same conversation's owner, and came before."""
    return (
        turn.request_id != request.id
        and turn.started_at < request.started_at
        and turn.key_id == request.key_id
        and turn.user_name == request.user_name
        and (request.session is None or request.session[0] == turn.session_id)
    )


def is_kept_part(turn: Earlier, kept: str) -> bool:
    """A client that stopped an answer keeps what it saw of it: less or more than was recorded."""
    if turn.status == "ok":
        return False
    said = _answer_text(turn)
    return bool(said and kept) and (begins(said, kept) or begins(kept, said))


def _answer_text(turn: Earlier) -> str:
    return canonical.text({"role": "assistant", "content": turn.response_text})


def _covered_by(request: TurnRequest, turn: Earlier) -> int | None:
    covered = (prefix.messages for prefix in request.prefixes if prefix.history == turn.history_hash)
    return next(covered, None)


def _lost_attempt(request: TurnRequest, known: EarlierTurns) -> Earlier | None:
    if request.attempt <= 0 and request.idempotency_key is None:
        return None
    same = [turn for turn in known.by_prompt(request.prompt_hash) if may_follow(request, turn)]
    recent = [turn for turn in same if request.started_at - turn.started_at <= RETRY_WINDOW]
    if request.idempotency_key is not None:
        recent = [turn for turn in recent if turn.client_request_id == request.idempotency_key]
    else:
        # Of a group, the one that failed was repeated; one that was answered only where there is no other.
        recent = [turn for turn in recent if turn.status != "ok"] or (recent if len(recent) == 1 else [])
    return max(recent, key=lambda turn: (turn.started_at, turn.id), default=None)


def _sibling(request: TurnRequest, known: EarlierTurns) -> Earlier | None:
    def was_over(turn: Earlier) -> bool:
        is_over = turn.finished_at is not None and turn.finished_at <= request.started_at
        return is_over and turn.kind == request.kind and not known.is_continued(turn.id)

    return _best(request, known.by_prompt(request.prompt_hash), was_over)


def _edited(request: TurnRequest, known: EarlierTurns) -> Earlier | None:
    """The turn whose answer comes back as another one: the user, or the client, wrote it anew.

    Only told where the client names no session, of a question that is long enough to be one's own, and where
    a single conversation began with it. What stands in the answer's place is not compared here.
    """
    if request.session is not None:
        return None
    for prefix in request.prefixes:
        before = request.messages[prefix.messages - 2] if prefix.messages > 1 else None
        if len(canonical.text(before)) < SHORTEST_SUMMARY:
            continue
        same = [turn for turn in known.by_prompt(prefix.prompt) if may_follow(request, turn)]
        if len({turn.session_id for turn in same}) == 1 and not any(known.is_continued(t.id) for t in same):
            newest = max(same, key=lambda turn: (turn.started_at, turn.id))
            return newest if request.started_at - newest.started_at <= EDIT_WINDOW else None
    return None


def _apart(request: TurnRequest, edited: Earlier) -> Place:
    """In the session of the answer that was edited: beside it, in a segment of its own."""
    return Place(
        session_id=edited.session_id,
        session_source="lineage",
        segment_id=request.id,
        parent_id=edited.parent_id,
        parent_messages=edited.parent_messages,
    )


def _below(request: TurnRequest, parent: ParentMatch) -> Place:
    session = request.session or (parent.turn.session_id, "lineage")
    is_same_session = session[0] == parent.turn.session_id
    return Place(
        session_id=session[0],
        session_source=session[1],
        segment_id=parent.turn.segment_id if is_same_session else request.id,
        parent_id=parent.turn.id,
        parent_messages=parent.messages,
    )


def _rolled(request: TurnRequest, turn: Earlier, messages: int) -> Place:
    """Below a turn whose history this request does not repeat: in its session, and a segment of its own."""
    session = request.session or (turn.session_id, "lineage")
    return Place(
        session_id=session[0],
        session_source=session[1],
        segment_id=request.id,
        parent_id=turn.id,
        parent_messages=messages,
    )


def _beside(request: TurnRequest, sibling: Earlier, retry_of: UUID | None = None) -> Place:
    session = request.session or (sibling.session_id, "lineage")
    return Place(
        session_id=session[0],
        session_source=session[1],
        segment_id=sibling.segment_id,
        parent_id=sibling.parent_id,
        parent_messages=sibling.parent_messages,
        retry_of=retry_of,
    )


def _new(request: TurnRequest) -> Place:
    session = request.session or (request.id.hex, "new")
    return Place(session_id=session[0], session_source=session[1], segment_id=request.id)
