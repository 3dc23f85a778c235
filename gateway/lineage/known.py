"""Earlier turns by what they can be found by. Pure."""

from collections.abc import Iterable
from uuid import UUID

from dukou.store.earlier import Earlier


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
