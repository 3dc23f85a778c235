"""The parent of a request whose beginning is not what was answered before. Pure.

Clients cut the oldest messages (a sliding window), put a summary in their place, or change the system
message with every request. Then no earlier history is a beginning of the request; but its last answer, with
the message before it, is an exchange that some turn ended with. That turn is the parent where the exchanges
before it agree with the turns before it, and where all such turns are of one session: two conversations that
read alike are never joined.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from dukou.store.earlier import Earlier
from gateway.lineage import canonical, former

LONGEST_WALK = 8  # exchanges that are compared at most
SHORTEST_ALONE = 24  # characters of a single exchange; shorter ones occur in many conversations


@dataclass(frozen=True, slots=True)
class Exchange:
    """An answer among a request's messages, with the message before it."""

    messages: int  # of the request, up to the answer and with it
    digest: bytes
    characters: int
    former: bytes | None = None  # gateway/lineage/former.py


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
            then = former.of_exchange(root, before, answer)
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
