"""What of a turn an earlier turn has already: the base, and what is left to be stored. Pure but for `find`.

A base's messages (or their beginning, to its last) and its ids (prompt and answer, or the prompt alone) must
be the beginning of the turn's own, exactly: digests tell, so nobody reads the base's ids again. A chain of
bases ends at the latest after MAX_DEPTH turns with one that is stored whole, and never leaves its partition.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from hashlib import blake2b
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection, bindparam, func, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql import any_
from sqlalchemy.types import Uuid

from dukou.store.body import HASH_BYTES, Body
from dukou.store.partitions import DEFAULT_PERIOD
from dukou.store.tables import turns

MAX_DEPTH = 256  # bases until a turn is stored whole: a look-up each, a millisecond or two together

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Base:
    """What is known of a turn that another may begin with. None: it has no such messages or ids."""

    id: UUID
    tenant: str
    period: date
    depth: int
    message_count: int | None
    messages_digest: bytes | None
    prompt_tokens: int | None
    prompt_digest: bytes | None
    all_tokens: int | None  # prompt and answer
    ids_digest: bytes | None
    answer_digest: bytes | None


@dataclass(frozen=True, slots=True)
class Overlap:
    """The base of a turn, and how many of the turn's first messages and prompt tokens it has already."""

    base: Base | None = None
    messages: int = 0
    tokens: int = 0

    @property
    def depth(self) -> int:
        return self.base.depth + 1 if self.base is not None else 0


class Digests:
    """Digests of a turn's beginnings; each count is hashed once."""

    def __init__(self, body: Body, prompt_ids: Ids | None, response_ids: Ids | None) -> None:
        hashes = b"".join([piece.hash for piece in body.messages or ()])
        self.hashes = memoryview(hashes) if body.messages is not None else None
        self.message_count = len(body.messages) if body.messages is not None else None
        self.prompt = _bytes(prompt_ids)
        self.prompt_tokens = len(prompt_ids) if prompt_ids is not None else None
        self.all_tokens: int | None = None
        self.ids_digest: bytes | None = None
        if prompt_ids is not None and response_ids is not None:
            self.all_tokens = len(prompt_ids) + len(response_ids)
            self.ids_digest = _digest(self.prompt, _bytes(response_ids))
        self._seen: dict[tuple[bool, int], bytes] = {}

    def messages(self, count: int | None) -> bytes | None:
        """Of the first `count` messages; None where there are not so many."""
        if self.hashes is None or count is None or count * HASH_BYTES > len(self.hashes):
            return None
        return self._of(self.hashes[: count * HASH_BYTES], True)

    def ids(self, count: int | None) -> bytes | None:
        """Of the first `count` prompt ids; None where there are not so many."""
        if self.prompt is None or count is None or count * 4 > len(self.prompt):
            return None
        return self._of(self.prompt[: count * 4], False)

    def _of(self, data: memoryview, are_messages: bool) -> bytes:
        key = (are_messages, len(data))
        if key not in self._seen:
            self._seen[key] = _digest(data)
        return self._seen[key]


def best_overlap(own: Digests, tenant: str, period: date, candidates: Iterable[Base]) -> Overlap:
    """The candidate that has most of the turn. In the default partition every turn stands alone: its rows are
    removed one by one."""
    best = Overlap()
    for base in candidates:
        if not is_near(base, tenant, period) or base.depth >= MAX_DEPTH:
            continue
        overlap = Overlap(base, _messages(own, base), _tokens(own, base))
        if (overlap.tokens, overlap.messages) > (best.tokens, best.messages):
            best = overlap
    return best


def is_near(base: Base, tenant: str, period: date) -> bool:
    """Whether the base lasts as long as what is stored beside it."""
    return base.tenant == tenant and base.period == period != DEFAULT_PERIOD


def extends(own: Digests, parent: Base | None) -> bool | None:
    """Whether the prompt's ids begin with the parent's prompt and answer; None where one has no ids."""
    if parent is None or parent.ids_digest is None or own.prompt is None:
        return None
    return own.ids(parent.all_tokens) == parent.ids_digest


def _messages(own: Digests, base: Base) -> int:
    digest = own.messages(base.message_count)
    return base.message_count or 0 if digest is not None and digest == base.messages_digest else 0


def _tokens(own: Digests, base: Base) -> int:
    for count, digest in ((base.all_tokens, base.ids_digest), (base.prompt_tokens, base.prompt_digest)):
        if digest is not None and own.ids(count) == digest:
            return count or 0
    return 0


def find(connection: Connection, ids: Sequence[UUID]) -> dict[UUID, Base]:
    """Those of the turns that are recorded."""
    t = turns.c
    query = select(
        t.id,
        t.tenant,
        t.period,
        t.depth,
        t.message_count,
        t.messages_digest,
        t.prompt_tokens,
        t.prompt_digest,
        t.prompt_tokens + func.cardinality(t.response_ids),
        t.ids_digest,
        t.answer_digest,
    ).where(t.id == any_(bindparam(None, list(ids), type_=ARRAY(Uuid()))))
    rows: Iterable[Any] = connection.execute(query) if ids else ()
    return {row[0]: Base(*row) for row in rows}


def _bytes(ids: Ids | None) -> memoryview | None:
    return memoryview(np.ascontiguousarray(ids, dtype="<i4").tobytes()) if ids is not None else None


def _digest(*parts: memoryview | None) -> bytes:
    found = blake2b(digest_size=HASH_BYTES)
    for part in parts:
        if part is not None:
            found.update(part)
    return found.digest()
