"""How a turn is stored: the columns that say what it adds to its base, and the new contents. Pure."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Any
from uuid import UUID

from dukou.store import bases
from dukou.store.bases import Base, Digests, Overlap
from dukou.store.body import HASH_BYTES, Body, Piece, digest
from dukou.store.contents import Content
from dukou.store.turn_rows import TurnRow

SHORTEST_SHARED_ANSWER = 64  # characters


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """A turn as it is stored, and as a base for later ones."""

    columns: dict[str, Any]  # of `turns`
    contents: tuple[Content, ...]  # the pieces that the base does not point to
    base: Base  # the turn itself, for those after it


def lay(row: TurnRow, period: date, candidates: Iterable[Base], parent: Base | None) -> StoredTurn:
    """The turn as it is stored: as what it adds to the best of `candidates`.

    Args:
        period: of the partition that it is stored in.
        parent: the turn that it goes on from.
    """
    near = [base for base in candidates if bases.is_near(base, row.tenant, period)]
    own = Digests(row.body, row.prompt_ids, row.response_ids)
    overlap = bases.best_overlap(own, row.tenant, period, near)
    columns: dict[str, Any] = {
        "base_id": overlap.base.id if overlap.base is not None else None,
        "base_messages": overlap.messages,
        "base_tokens": overlap.tokens,
        "depth": overlap.depth,
        "period": period,
        "prefix_ok": bases.extends(own, parent),
    }
    columns |= _body_columns(row.body, own, overlap) | _id_columns(row, own, overlap)
    base = _as_base(row, period, own, overlap)
    columns["answer_digest"] = base.answer_digest
    answers = {one.answer_digest: one.id for one in near if one.answer_digest is not None}
    new = tuple([_content(row, period, piece, answers) for piece in _new_pieces(row.body, overlap)])
    return StoredTurn(columns, new, base)


def _body_columns(body: Body, own: Digests, overlap: Overlap) -> dict[str, Any]:
    hashes = bytes(own.hashes[overlap.messages * HASH_BYTES :]) if own.hashes is not None else None
    return {
        "rest_hash": body.rest.hash,
        "messages_at": body.messages_at,
        "messages_joint": body.joint,
        "tools_at": body.tools_at,
        "tools_hash": body.tools.hash if body.tools is not None else None,
        "message_hashes": hashes,
        "message_count": own.message_count,
        "messages_digest": own.messages(own.message_count),
    }


def _id_columns(row: TurnRow, own: Digests, overlap: Overlap) -> dict[str, Any]:
    known = [ids for ids in (row.prompt_ids, row.response_ids) if ids is not None and len(ids)]
    prompt = row.prompt_ids
    return {
        "prompt_ids": prompt[overlap.tokens :] if prompt is not None else None,
        "prompt_tokens": own.prompt_tokens,
        "prompt_digest": own.ids(own.prompt_tokens),
        "ids_digest": own.ids_digest,
        "lowest_id": min((int(ids.min()) for ids in known), default=None),
        "highest_id": max((int(ids.max()) for ids in known), default=None),
    }


def _new_pieces(body: Body, overlap: Overlap) -> tuple[Piece, ...]:
    tools = (body.tools,) if body.tools is not None else ()
    return (body.rest, *(body.messages or ())[overlap.messages :], *tools)


def _content(row: TurnRow, period: date, piece: Piece, answers: Mapping[bytes, UUID]) -> Content:
    """The piece, without the answer in it where that is stored with its turn."""
    whole = Content(row.tenant, period, piece.hash, piece.body, piece.readable)
    turn_id = answers.get(_answer_digest(piece.said) or b"") if answers else None
    if turn_id is None:
        return whole
    literal = json.dumps(piece.said, ensure_ascii=False).encode()  # as Postgres's to_json writes it
    before, found, after = piece.body.partition(literal)
    if not found:
        return whole
    return replace(whole, body=before + after, answer_id=turn_id, answer_at=len(before))


def _answer_digest(text: str | None) -> bytes | None:
    """None where the text is too short to be worth a reference, or no Unicode.

    Of the text exactly, not of what a reader sees of it: the client's bytes are made of it again.
    """
    if text is None or len(text) < SHORTEST_SHARED_ANSWER:
        return None
    try:
        return digest(text.encode())
    except UnicodeEncodeError:
        return None


def _as_base(row: TurnRow, period: date, own: Digests, overlap: Overlap) -> Base:
    return Base(
        id=row.id,
        tenant=row.tenant,
        period=period,
        depth=overlap.depth,
        message_count=own.message_count,
        messages_digest=own.messages(own.message_count),
        prompt_tokens=own.prompt_tokens,
        prompt_digest=own.ids(own.prompt_tokens),
        all_tokens=own.all_tokens,
        ids_digest=own.ids_digest,
        answer_digest=_answer_digest(row.response_text),
    )
