"""Between two looks at the engines the reconciler waits for a pointer to move."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from gateway.reconcile.process import wait

FOR_EVER = 1e9


@dataclass
class Quiet:
    """An event that is set at its n-th look, and store whose pointer has moved at theirs."""

    ends_at: int = 0
    moves_at: int = 0
    waited: list[float] = field(default_factory=list)
    asked: int = 0

    def wait(self, seconds: float) -> bool:
        self.waited.append(seconds)
        return len(self.waited) == self.ends_at

    def moved(self) -> bool:
        self.asked += 1
        return self.asked == self.moves_at


@pytest.mark.parametrize(("quiet", "looks"), [(Quiet(moves_at=3), 3), (Quiet(ends_at=2), 2)])
def test_it_goes_on_as_soon_as_a_pointer_moves_or_it_is_told_to_end(quiet: Quiet, looks: int) -> None:
    wait(cast(Any, quiet), cast(Any, quiet), FOR_EVER)
    assert len(quiet.waited) == looks
    assert all(seconds <= 0.1 for seconds in quiet.waited)


def test_it_waits_no_longer_than_it_was_told() -> None:
    quiet = Quiet()
    wait(cast(Any, quiet), cast(Any, quiet), 0.0)
    assert (quiet.waited, quiet.asked) == ([0.0], 0)
