"""A request's body in pieces, each stored once for all turns that repeat it. Pure.

The pieces are the client's bytes. Joined again they are the body, byte for byte.
"""

from dataclasses import dataclass, field
from hashlib import blake2b

HASH_BYTES = 16


def digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=HASH_BYTES).digest()


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes, and what Postgres shows where it cannot read them (None: it can)."""

    body: bytes
    readable: str | None = None
    said: str | None = None  # an assistant message's text: it may be an answer that is stored already
    hash: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "hash", digest(self.body))


@dataclass(frozen=True, slots=True)
class Body:
    """The rest of a body, and what was cut out of it: messages one by one, and the tools."""

    rest: Piece
    messages: tuple[Piece, ...] | None = None  # None: there is no list of messages
    messages_at: int | None = None  # offset in the rest; None: the rest still has them
    joint: bytes | None = None  # what stood between two messages
    tools: Piece | None = None
    tools_at: int | None = None

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return (self.rest, *(self.messages or ()), *((self.tools,) if self.tools is not None else ()))

    @property
    def altered(self) -> bool:
        """Whether something in it can only be shown with a mark."""
        return any(piece.readable is not None for piece in self.pieces)

    @property
    def size(self) -> int:
        return sum(len(piece.body) for piece in self.pieces)

    def whole(self) -> bytes:
        """The body as the client sent it."""
        cuts: list[tuple[int, bytes]] = []
        if self.messages_at is not None:
            said = (self.joint or b"").join(piece.body for piece in self.messages or ())
            cuts.append((self.messages_at, said))
        if self.tools_at is not None and self.tools is not None:
            cuts.append((self.tools_at, self.tools.body))
        out, last = bytearray(), 0
        for at, piece in sorted(cuts):
            out += self.rest.body[last:at] + piece
            last = at
        return bytes(out + self.rest.body[last:])
