"""Digests of turns that were recorded when what no reader can see still counted. Pure.

Their rows keep the digests of the text as it was: line ends, blanks at the ends of lines, the form of accents
and characters without a glyph included. Where a request has any of these, a look-up asks for both digests,
and what is found by the former one is known by the present one from there on. This can go once no
conversation is continued that began before.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dukou.store.earlier import Earlier
from gateway.lineage import canonical
from gateway.lineage.canonical import Form


def of_chain(start: bytes, forms: Sequence[Form], digests: Sequence[bytes]) -> Mapping[bytes, bytes]:
    """Present digest → former one, of those that differ; `digests` is the chain over `forms`."""
    if all(form.former is None for form in forms):
        return {}
    former = canonical.chain(start, [_formerly(form) for form in forms])
    return {now: then for now, then in zip(digests, former, strict=True) if now != then}


def of_exchange(start: bytes, before: Form, answer: Form) -> bytes | None:
    """The former digest of an exchange; None where it is the present one."""
    if before.former is None and answer.former is None:
        return None
    return canonical.exchange(start, _formerly(before), _formerly(answer))


def renewed(turns: Iterable[Earlier], former: Mapping[bytes, bytes]) -> Iterable[Earlier]:
    """The turns under their present digests; `former` as of `of_chain`."""
    present = {then: now for now, then in former.items()}
    return (_renewed(turn, present) for turn in turns) if present else turns


def _renewed(turn: Earlier, present: Mapping[bytes, bytes]) -> Earlier:
    def now(digest: bytes | None) -> bytes | None:
        return present.get(digest, digest) if digest is not None else None

    return replace(
        turn,
        history_hash=now(turn.history_hash),
        prompt_hash=now(turn.prompt_hash),
        exchange_hash=now(turn.exchange_hash),
    )


def _formerly(form: Form) -> Form:
    return form if form.former is None else form._replace(data=form.former)
